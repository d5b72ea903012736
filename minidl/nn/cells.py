"""One step of a recurrent network, with the names and arguments of torch.nn: compositions of operations."""

from math import sqrt
from typing import Any, ClassVar

from minidl.errors import UserError
from minidl.nn import init
from minidl.nn.module import Module
from minidl.nn.precision import lowered
from minidl.ops.arithmetic import add, mul, sub
from minidl.ops.elementwise import relu, sigmoid, tanh
from minidl.ops.linear import linear
from minidl.ops.parts import chunk, split, squeeze, unsqueeze
from minidl.ops.update import full
from minidl.runtime import parameter
from minidl.tensor import Tensor


class _Cell(Module):
    """The base class of recurrent cells. Parameters have torch.nn's names, shapes and order of gates. x: [N, input]."""

    gates: ClassVar[int] = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        self.hidden_size = hidden_size
        rows, bound = self.gates * hidden_size, 1.0 / sqrt(hidden_size)
        self.weight_ih = parameter((rows, input_size))
        self.weight_hh = parameter((rows, hidden_size))
        self.bias_ih = parameter((rows,)) if bias else None
        self.bias_hh = parameter((rows,)) if bias else None
        for made in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh):
            if made is not None:
                init.uniform_(made, -bound, bound)

    def step(self, x: Tensor, state: Any = None) -> Any:
        """Return the next state of a batch x [N, inputs] from ``state`` (None: zeros); subclasses define it."""
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Return the next state from the previous one, by default zeros; a single example may lack the dimension N."""
        if input.ndim > 1:
            return self.step(input, hx)
        state = tuple(unsqueeze(h, 0) for h in hx) if isinstance(hx, tuple) else hx if hx is None else unsqueeze(hx, 0)
        made = self.step(unsqueeze(input, 0), state)
        return tuple(squeeze(h, 0) for h in made) if isinstance(made, tuple) else squeeze(made, 0)

    def start(self, x: Tensor) -> Tensor:
        """Return an initial state of zeros, [N, H]."""
        return full((x.shape[0], self.hidden_size), 0.0, x.dtype)

    def parts(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gates' two linear terms, w_ih x + b_ih of the inputs and w_hh h + b_hh of the state."""
        return (linear(lowered(x), lowered(self.weight_ih), self.bias_ih),
                linear(lowered(h), lowered(self.weight_hh), self.bias_hh))


class RNNCell(_Cell):
    """One step of an Elman RNN, tanh (or relu) of the sum of linear terms: [N, inputs] and [N, H] -> [N, H]."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise UserError(f"RNNCell: nonlinearity must be tanh or relu, not {nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity: Any = {"tanh": tanh, "relu": relu}[nonlinearity]

    def step(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self.nonlinearity(add(*self.parts(x, self.start(x) if h is None else h)))  # type: ignore[no-any-return]


class LSTMCell(_Cell):
    """One step of an LSTM: inputs [N, inputs] and states (h, c), each [N, H] -> the next (h, c)."""

    gates = 4

    def step(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = (self.start(x), self.start(x)) if state is None else state
        i, f, g, o = chunk(add(*self.parts(x, h)), 4, 1)
        c = add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))
        return mul(sigmoid(o), tanh(c)), c


class GRUCell(_Cell):
    """One step of a GRU: [N, inputs] and [N, H] -> [N, H]."""

    gates = 3

    def step(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        h = self.start(x) if h is None else h
        (gates_x, n_x), (gates_h, n_h) = (split(y, [2 * self.hidden_size, self.hidden_size], 1)
                                          for y in self.parts(x, h))
        r, z = chunk(sigmoid(add(gates_x, gates_h)), 2, 1)
        n = tanh(add(n_x, mul(r, n_h)))
        return add(n, mul(z, sub(h, n)))
