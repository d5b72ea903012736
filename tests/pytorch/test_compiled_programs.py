"""Code of ``torch.compile`` runs compiled in each step, and computes the same bits."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_nets import NETWORKS, ROOMY, Program, forced, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch import beneath  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402


@pytest.fixture
def compiled():
    """A program, and a list that gets an entry for each run of its compiled code, which rounds as no eager code does.
    """
    pytest.importorskip("torch._dynamo", reason="this PyTorch has no compiler")
    runs = []

    def compiler(graph, inputs):
        def rounded(*args):
            runs.append(1)
            return tuple(each * (1 + 1e-3) if each.is_floating_point() else each for each in graph(*args))
        return rounded

    def make():
        torch._dynamo.reset()
        network = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(4)))
        x, run_compiled = torch.randn(64, 48), torch.compile(network, backend=compiler)
        return Program(network, torch.optim.AdamW(network.parameters(), 1e-3), lambda: run_compiled(x).pow(2).mean())

    return make, runs


def test_compiled_code_runs_compiled_in_recorded_and_planned_steps(compiled, recwarn):
    make, runs = compiled
    expected, memory = run(make), minidl.torch.managed(ROOMY)
    runs.clear()
    assert same(run(make, memory=memory), expected) and len(runs) == 5
    assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 3}
    assert not [each for each in recwarn if "hooks" in str(each.message)]


def test_a_pytorch_that_runs_compiled_code_uncompiled_under_a_mode_records_no_step_of_it(compiled, monkeypatch):
    make, runs = compiled
    expected, memory = run(make), minidl.torch.managed(ROOMY)
    monkeypatch.setattr(beneath, "BESIDE_COMPILED", False)
    runs.clear()
    assert same(run(make, memory=memory), expected) and len(runs) == 5
    assert memory.report().steps == {Phase.AWAY: 5} and "compiled code" in str(memory.report())


class Hidden(nn.Module):
    """Multiplies by a result of a buffer, which compiled code then overwrites. No dispatch mode sees it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 48))
        self.register_buffer("mean", torch.randn(48, 48))
        self.update = torch.compile(lambda mean, x: mean.mul_(0.9).add_(x), backend=self.hidden)

    def hidden(self, graph, inputs):
        """The compiler."""
        def run_hidden(*args):
            with torch._C._DisableTorchDispatch():
                return graph(*args)
        return run_hidden

    def forward(self, x):
        """[48, 48] -> the same."""
        y = (self.mean + 1).exp() * self.weight
        with torch.no_grad():
            self.update(self.mean, x)
        return y.tanh() @ self.weight


def test_nothing_is_computed_again_that_compiled_code_may_have_overwritten():
    def make():
        torch._dynamo.reset()
        network, x = Hidden(), torch.randn(48, 48)
        return Program(network, torch.optim.SGD(network.parameters(), 0.1), lambda: network(x).pow(2).mean())

    memory = forced("drop")
    assert same(run(make), run(make, memory=memory))
    assert memory.report().steps[Phase.GUIDED] == 3 and not memory.report().replayed_calls


def test_a_plan_that_computes_again_is_void_once_there_is_compiled_code():
    eager, memory = NETWORKS["transformer"](), forced("drop")
    with memory:
        for _ in range(3):
            eager.step()
        torch.compile(torch.sin, backend="eager")(torch.ones(3))
        eager.step()  # it began by the plan
        replayed = memory.report().replayed_calls
        for _ in range(3):
            eager.step()
    assert memory.report().replayed_calls == replayed > 0
    assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 2, Phase.GUIDED: 4}
