"""A recorded step says which bytes are there at each call, also where several saved tensors share one storage."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_nets import ROOMY, Program, forced, peak, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402


def program(network, shape, optimizer=torch.optim.AdamW):
    """Train on noise. An RNN's output is the first part of its result."""
    x = torch.randn(shape)

    def loss():
        y = network(x)
        return (y[0] if isinstance(y, tuple) else y).pow(2).mean()

    return Program(network, optimizer(network.parameters(), 1e-3), loss)


def of_statistics():
    """Batch norm saves running statistics that are made in the step, and writes them before they are freed."""
    norm = nn.InstanceNorm2d(64, affine=True, track_running_stats=True)
    return program(nn.Sequential(nn.Conv2d(3, 64, 3), norm, nn.ReLU(), nn.Conv2d(64, 8, 3)), (32, 3, 12, 12),
                   torch.optim.SGD)


class Directions(nn.Module):
    """An LSTM in both directions and a GRU."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(32, 64, bidirectional=True), nn.GRU(128, 64)

    def forward(self, x):
        """[length, n, 32] -> [length, n, 64]."""
        return self.gru(self.lstm(x)[0])[0]


class Cell(nn.Module):
    """An LSTM, step by step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(32, 64)

    def forward(self, x):
        """[length, n, 32] -> [n, 64]."""
        state = None
        for each in x:
            state = self.cell(each, state)
        return state[0]


# The gates of a GRU and of the cell of an LSTM are parts of one storage with version counters of their own.
NETWORKS = {
    "statistics": of_statistics,
    "gru": lambda: program(nn.GRU(32, 64, batch_first=True), (32, 20, 32)),
    "cell": lambda: program(Cell(), (12, 16, 32)),
    "directions": lambda: program(Directions(), (12, 16, 32))}


# Parts with version counters of their own are saved one by one, each with its whole storage.
MOST = {"gru": 1.5, "cell": 1.7, "directions": 1.2}


def reads_of_nothing(trace):
    """Return the calls that read a tensor before it is made or after it is freed."""
    made = {tensor_id for call in trace.calls for tensor_id in call.outputs}
    there, found = set(trace.tensors) - made, []
    for number, call in enumerate(trace.calls):
        found += [(number, call.op, tensor_id) for tensor_id in call.inputs if tensor_id not in there]
        there = (there | set(call.outputs)) - set(call.frees)
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_each_call_of_a_recorded_step_finds_what_it_reads(network):
    memory = minidl.torch.managed(ROOMY)
    run(NETWORKS[network], 2, memory)
    assert not reads_of_nothing(memory.course.known[-1].recorded.trace)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_floor_is_below_the_unmanaged_peak_and_budgets_between_them_are_kept(network):
    known = minidl.torch.managed(ROOMY)
    run(NETWORKS[network], 2, known)
    least, most = known.report().floor_bytes, known.report().unmanaged_bytes
    assert least < most and 0.98 < most / peak(NETWORKS[network]) < MOST.get(network, 1.02)
    for percent in (0, 93):
        budget = least + (most - least) * percent // 100
        memory = minidl.torch.managed(budget)
        assert peak(NETWORKS[network], memory, 4) <= budget
        assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 2}


@pytest.mark.parametrize("how", ["keep", "swap", "mixed", "drop"])
def test_statistics_of_a_step_leave_in_whichever_way_and_no_bit_differs(how):
    memory = forced(how)
    assert same(run(of_statistics), run(of_statistics, memory=memory))
    trace = memory.course.known[-1].recorded.trace
    # Running and saved mean and variance, and the weight for each image.
    assert [trace.tensors[tensor_id].nbytes for tensor_id in trace.windows].count(4 * 32 * 64) == 5


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_gradients_that_a_call_overwrites_count_once(clip, foreach):
    def make():
        network = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
        x = torch.randn(8, 128)

        class Clipped(Program):
            def step(self):
                self.optimizer.zero_grad()
                loss = self.loss()
                loss.backward()
                clip(network.parameters(), 0.1, foreach=foreach)
                self.optimizer.step()
                return loss.detach().clone()
        return Clipped(network, torch.optim.SGD(network.parameters(), 0.1), lambda: network(x).pow(2).mean())
    memory = minidl.torch.managed(ROOMY)
    run(make, 2, memory)
    report = memory.report()
    assert report.floor_bytes <= report.unmanaged_bytes <= 1.05 * peak(make)
    assert peak(make, minidl.torch.managed(report.floor_bytes)) <= report.floor_bytes
