"""Networks whose saved tensors are not what they seem keep their bits: pieces of one storage, tensors that a call fills
after autograd has saved them, memory that others write, gradients that are computed otherwise under a mode."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_nets import ROOMY, Program, forced, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402

HOW = ["keep", "swap", "mixed", "drop"]


class Unrolled(nn.Module):
    """A recurrent cell, called once for each step of a sequence."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[length, n, features] -> [n, hidden]."""
        state = None
        for each in x:
            state = self.cell(each, state)
        return state[0] if isinstance(state, tuple) else state


class Packed(nn.Module):
    """An LSTM of sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[length, n, 32] -> [parts of all sequences, 48]."""
        lengths = torch.arange(x.shape[0], x.shape[0] - x.shape[1], -1)
        return self.lstm(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data


class Pieces(nn.Module):
    """Writes in place to pieces of one storage that have version counters of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[length, n, 32] -> [length, n, 48]."""
        a, b, c, d = self.linear(x).unsafe_chunk(4, -1)
        return a.sigmoid_() * b.tanh_() + c.exp_() * d.relu_()


RECURRENT = {"GRU": lambda: nn.GRU(32, 48), "GRUCell": lambda: Unrolled(nn.GRUCell(32, 48)),
             "LSTMCell": lambda: Unrolled(nn.LSTMCell(32, 48)), "packed": Packed, "pieces": Pieces,
             "bfloat16": lambda: nn.LSTM(32, 48).bfloat16()}


def recurrent(network):
    def make():
        inner = RECURRENT[network]()
        x = torch.randn(20, 16, 32).to(next(inner.parameters()).dtype)

        def loss():
            y = inner(x)
            return (y[0] if isinstance(y, tuple) else y).float().pow(2).mean()
        return Program(inner, torch.optim.SGD(inner.parameters(), 1.0), loss)
    return make


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("network", RECURRENT)
def test_pieces_of_one_storage_with_their_own_version_counters_have_their_own_copies(network, how):
    memory = forced(how)
    assert same(run(recurrent(network)), run(recurrent(network), memory=memory))
    assert memory.report().out_bytes > 0 and memory.report().steps[Phase.GUIDED] == 3


def noisy():
    network = nn.Sequential(nn.Linear(64, 64), nn.RReLU(), nn.Linear(64, 64), nn.RReLU(inplace=True), nn.Linear(64, 9))
    x = torch.randn(64, 64)
    return Program(network, torch.optim.SGD(network.parameters(), 0.1), lambda: network(x).pow(2).mean())


@pytest.mark.parametrize("how", HOW)
def test_noise_that_a_call_fills_after_autograd_has_saved_it_is_copied_afterwards(how):
    memory = forced(how)
    assert same(run(noisy), run(noisy, memory=memory))
    assert memory.report().steps[Phase.GUIDED] == 3


def test_a_step_that_leaves_its_plan_between_noise_and_its_filling_copies_it_afterwards():
    def make():
        layer = nn.Linear(64, 64)
        x, steps = torch.randn(64, 64), iter(range(9))

        def loss():
            y = layer(x) * 1.5
            if next(steps) == 3:  # its second saved tensor is of the planned shape, the third is not
                return F.rrelu(y, training=True).exp().sum()
            return (y * torch.rand(64, 64))[:, :60].exp().sum()
        return Program(layer, torch.optim.SGD(layer.parameters(), 1e-4), loss)

    memory = forced("keep")
    assert same(run(make), run(make, memory=memory))
    assert memory.report().diverged


@pytest.mark.parametrize("how", HOW)
def test_what_is_computed_from_a_buffer_of_numpy_is_not_computed_again_from_the_next_batch(how):
    def make():
        network, buffer = nn.Linear(64, 64), np.zeros((64, 64), np.float32)
        batches, draw = torch.from_numpy(buffer), np.random.default_rng(0)

        def loss():
            y = network(batches * 2 + 1)
            buffer[:] = draw.random(buffer.shape)
            return y.pow(2).mean()
        return Program(network, torch.optim.SGD(network.parameters(), 0.1), loss)
    memory = forced(how)
    assert same(run(make), run(make, memory=memory))
    assert memory.report().steps[Phase.GUIDED] == 3


class Product(nn.Module):
    """Takes products of the results of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 64] -> [n]."""
        return (self.linear(x).sigmoid() + 0.5).prod(1)


class Filled(nn.Module):
    """Fills masked elements with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.value = nn.Linear(64, 64), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 64] -> the same."""
        return self.linear(x).masked_fill(x > 0, self.value).exp()


@pytest.mark.parametrize("network", [Product, Filled])
def test_a_step_whose_gradients_have_other_bits_when_it_is_recorded_is_not_recorded_to_its_end(network):
    def make():
        inner, x = network(), torch.randn(64, 64)
        return Program(inner, torch.optim.SGD(inner.parameters(), 1e-3), lambda: inner(x).pow(2).mean())

    memory = minidl.torch.managed(ROOMY)
    assert same(run(make), run(make, memory=memory))
    report = memory.report()
    assert report.steps == {Phase.AWAY: 4, Phase.MEASURED: 1} and report.remark in str(report)
    assert "aten::" + {Product: "prod", Filled: "masked_fill"}[network] in report.remark


@pytest.fixture
def memory_of_nan():
    """PyTorch fills memory that is not initialized with NaN: nothing is right by chance."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("how", HOW)
def test_what_is_filled_without_a_call_is_not_computed_again(how, memory_of_nan):
    """PyTorch makes the lengths of targets a tensor by an allocation, and writes them there itself."""
    def make():
        layer, x, targets = nn.Linear(8, 8), torch.randn(9, 1100, 8), torch.randint(1, 8, (1100, 3))

        def loss():
            # More tensors are saved after the lengths, so that these leave before the backward pass.
            return F.ctc_loss(layer(x).log_softmax(-1), targets, [9] * 1100, [3] * 1100).sigmoid().sin().exp()
        return Program(layer, torch.optim.SGD(layer.parameters(), 1.0), loss)
    memory = forced(how)
    assert same(run(make), run(make, memory=memory))
    assert memory.report().steps[Phase.GUIDED] == 3
