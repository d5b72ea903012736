"""A PyTorch program as a trace: its peak is that of PyTorch's own tracker, and it runs again."""

import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from minidl.cli.traced import packed as packed_page  # noqa: E402
from minidl.errors import UserError  # noqa: E402
from minidl.lab import cell  # noqa: E402
from minidl.lab.inferred import live_bytes  # noqa: E402
from minidl.lab.torch_capture import FakeTensorMode, capture  # noqa: E402
from minidl.lab.torch_programs import program  # noqa: E402
from minidl.view.packing import values  # noqa: E402
from minidl.view.recording import TensorKind  # noqa: E402

IN_PLACE = 10


def convolutional() -> "torch.nn.Module":
    """With writes in place, views and a buffer that is written."""
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                         nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000))


def stepping(batch: int):
    """A step of one's own, with what outlives it."""
    w = torch.zeros(64, 64, requires_grad=True)

    def step() -> None:
        x = torch.ones(batch, 64)
        (x @ w).relu_().t().sum().backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)
        w.grad = None

    step.lasting = lambda: [w]
    return step


def tracked_peak(name: str, batch: int) -> int:
    """What PyTorch's tracker says of the second step."""
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker").MemTracker()
    with FakeTensorMode(allow_non_fake_inputs=True):
        step, lasting = program(name, batch)
        step()
        for found in (*step.__closure__, *lasting.__closure__):
            if isinstance(found.cell_contents, torch.nn.Module | torch.optim.Optimizer):
                tracker.track_external(found.cell_contents)
        with tracker:
            step()
        return sum(each["Total"] for each in tracker.get_tracker_snapshot("peak").values())


def test_the_peak_of_a_trace_is_that_of_pytorchs_own_tracker():
    name = f"{__name__}:convolutional"
    trace = capture(name, 4)
    assert max(live_bytes(trace)) == pytest.approx(tracked_peak(name, 4), rel=0.02)
    ops = {call.op for call in trace.calls}
    assert "convolution" in ops and any("batch_norm" in op for op in ops)
    assert any(call.writes for call in trace.calls) and any(call.saves for call in trace.calls)
    assert not any(call.replayable for call in trace.calls if call.writes)
    rectified = next(call for call in trace.calls if call.op == "relu_")
    assert rectified.replayable and rectified.donated == ((*rectified.outputs, *rectified.inputs),)
    row = cell.run("torch", trace, cell.Machine(), "capuchin", 0.7, steps=5)
    assert row.status == "ok" and row.settled_s > 0


def test_a_step_of_ones_own_says_what_outlives_it():
    trace = capture(f"{__name__}:stepping", 8)
    assert [t.nbytes for t in trace.tensors.values() if t.persistent] == [64 * 64 * 4]
    assert trace.seconds > 0 and all(call.seconds >= 0 for call in trace.calls)
    measured = capture(f"{__name__}:stepping", 8, values=True)
    assert [call.op for call in measured.calls] == [call.op for call in trace.calls]


def keeping(batch: int):
    """Between what is saved and its call stands another one; a result is saved by its maker and by its reader."""
    nn = torch.nn
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Flatten(),
                            nn.Linear(8 * 28 * 28, 5), nn.Tanh())

    def step() -> None:
        network(torch.ones(batch, 3, 32, 32)).sin().sum().backward()

    step.lasting = lambda: [*network.parameters(), *network.buffers()]
    return step


def test_all_that_is_saved_is_booked_on_the_call_whose_gradient_wants_it():
    trace = capture(f"{__name__}:keeping", 2)
    kept = {}
    for call in trace.calls:
        sources = dict.fromkeys(call.inputs, "read") | dict.fromkeys(call.outputs, "made")
        if call.saves:
            kept.setdefault(call.op, []).append(sorted(sources[i] for i in call.saves))
    statistics = ["made"] * 2 + ["read"] * 4  # of the batch; x, weight, and the running ones
    assert kept == {"convolution": [["read", "read"]] * 2, "native_batch_norm": [statistics], "tanh": [["made"]] * 2,
                    "addmm": [["read", "read"]], "sin": [["read"]]}
    savers = [n for n, call in enumerate(trace.calls) if call.saves]
    assert sorted(at for call in trace.calls for at in call.takes) == savers


@pytest.mark.parametrize("name", ["nowhere:x", "math:nothing", "math", "math:floor", "builtins:list"])
def test_what_is_no_program_is_refused(name):
    with pytest.raises(UserError) as error:
        capture(name, 2)
    assert "\n" not in str(error.value)


def in_place() -> "torch.nn.Module":
    """A network whose second layer writes in place: the trace's ids differ from those of the run after it."""
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, 1000))


class Block(torch.nn.Module):
    """A module with a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = in_place()

    def forward(self, images: "torch.Tensor") -> "torch.Tensor":
        return self.inner(images * 2.0)


def test_a_page_names_the_module_and_the_line_that_made_a_tensor():
    packed = packed_page(f"torch:{__name__}:Block:4", ["--steps", "2"])
    subjects, words = packed["subjects"], packed["words"]
    named = [(words[name], words[line], int(nbytes), int(kind)) for name, line, nbytes, kind in zip(*(
        values(subjects[column]) for column in ("name", "line", "bytes", "kind")), strict=True)]
    source, first = inspect.getsourcelines(Block.forward)
    line = f"{Path(__file__).relative_to(Path.cwd())}:{first + len(source) - 1}"
    images, found = 4 * 3 * 224 * 224 * 4, 4 * 8 * 56 * 56 * 4
    assert named.count(("Block", line, images, TensorKind.ACTIVATION)) == 1
    assert named.count(("inner.0", line, found, TensorKind.ACTIVATION)) == 1
    assert named.count(("inner.1", line, found, TensorKind.ACTIVATION)) == 1  # written in place: another tensor
    gradients = [name for name, _, nbytes, kind in named if nbytes == found and kind == TensorKind.GRADIENT]
    assert gradients == ["inner.2", "inner.1"]  # each of the call whose gradient is being computed
    assert named.count(("inner.4.weight", "", 8 * 1000 * 4, TensorKind.PARAMETER)) == 1
    assert named.count(("momentum_buffer of inner.4.weight", "", 8 * 1000 * 4, TensorKind.OPTIMIZER_STATE)) == 1
