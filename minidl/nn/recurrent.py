"""RNN, LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014) over sequences.

Parameters have torch.nn's names, shapes and order of gates, and the formulas are torch.nn's. The inputs' contribution
to the gates is one matrix product per layer, for all steps. The steps of an LSTM's or a GRU's layer are one operation
where the device has it (``Device.fuses_recurrence``), and else, as those of an RNN, several operations for each step.
"""

from math import sqrt

from minidl.context import current
from minidl.dispatch import donate
from minidl.errors import ShapeError, UserError
from minidl.nn import init
from minidl.nn.layers import Dropout
from minidl.nn.module import Module
from minidl.nn.precision import lowered
from minidl.ops import elementwise, linear, recurrent
from minidl.ops.parts import chunk, split, squeeze, stack, unsqueeze
from minidl.ops.shape import concat, permute
from minidl.ops.update import full
from minidl.runtime import parameter
from minidl.tensor import Tensor

State = tuple[Tensor, ...]  # of one layer and direction, [N, H] each


class _Recurrent(Module):
    """The base class of recurrent networks: layers of one or two directions.
    x: [L, N, inputs], or [N, L, inputs] if ``batch_first``."""

    gates: int  # the weights have gates * H rows
    states: int  # number of tensors in a state

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
                 proj_size: int = 0) -> None:
        if proj_size:
            raise UserError(f"{type(self).__name__}: proj_size must be 0, not {proj_size}: outputs are not projected")
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = Dropout(dropout)
        self.suffixes = ("", "_reverse") if bidirectional else ("",)
        rows, bound = self.gates * hidden_size, 1.0 / sqrt(hidden_size)
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * len(self.suffixes)
            for suffix in self.suffixes:
                shapes = {"weight_ih": (rows, width), "weight_hh": (rows, hidden_size), "bias_ih": (rows,),
                          "bias_hh": (rows,)}
                for name, shape in shapes.items():
                    made = parameter(shape) if bias or name.startswith("weight") else None
                    setattr(self, f"{name}_l{layer}{suffix}", made)
                    if made is not None:
                        init.uniform_(made, -bound, bound)

    def cell(self, given: Tensor, recurrent: Tensor, state: State) -> State:
        """Return the next state of one layer, a tuple whose first tensor is the output.
        given, recurrent: the gates' linear terms w_ih x + b_ih and w_hh h + b_hh, [N, gates * H] each."""
        raise NotImplementedError

    def fused(self, given: Tensor, weight: Tensor, bias: Tensor | None, state: State, *, backwards: bool
              ) -> tuple[Tensor, State] | None:
        """Return a layer's outputs and last state, computed by one operation; None if there is no such operation.
        given: the gates' terms of the input, w_ih x + b_ih, [N, L, gates * H]. weight, bias: w_hh and b_hh. backwards:
        True to go from the last element of the sequence to the first."""
        return None

    def run(self, x: Tensor, state: list[State] | None) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs in x's layout, and the last states, [layers * directions, N, H] each.
        All are without N for a single sequence [L, inputs]. Raises ShapeError for an x or state that does not fit."""
        if x.ndim == 2:
            alone = None if state is None else [tuple(unsqueeze(part, 0) for part in parts) for parts in state]
            batch = 0 if self.batch_first else 1
            y, ends = self.run(unsqueeze(x, batch), alone)
            return squeeze(y, batch), [squeeze(end, 1) for end in ends]
        if x.ndim != 3:
            raise ShapeError(f"{type(self).__name__} needs sequences of two or three dimensions, not {list(x.shape)}")
        x = lowered(x if self.batch_first else permute(x, (1, 0, 2)))
        count, wanted = self.num_layers * len(self.suffixes), (x.shape[0], self.hidden_size)
        if state is not None and (len(state) != count or any(h.shape != wanted for parts in state for h in parts)):
            raise ShapeError(f"{type(self).__name__}: each part of a state needs the shape {[count, *wanted]}")
        last: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in self.suffixes:
                start = (tuple(full((x.shape[0], self.hidden_size), 0.0, x.dtype) for _ in range(self.states))
                         if state is None else state[len(last)])
                made, end = self._direction(x, f"l{layer}{suffix}", start, backwards=bool(suffix))
                outputs.append(made)
                last.append(end)
            x = outputs[0] if len(outputs) == 1 else concat(outputs, 2)
            if layer < self.num_layers - 1:
                x = self.dropout(x)
        ends = [stack([state[i] for state in last]) for i in range(self.states)]
        return (x if self.batch_first else permute(x, (1, 0, 2))), ends

    def _direction(self, x: Tensor, name: str, state: State, *, backwards: bool) -> tuple[Tensor, State]:
        given = linear.linear(x, lowered(getattr(self, f"weight_ih_{name}")), getattr(self, f"bias_ih_{name}"))
        weight, bias = lowered(getattr(self, f"weight_hh_{name}")), getattr(self, f"bias_hh_{name}")
        if x.shape[1] and current().device.fuses_recurrence(x.meta) and (
                made := self.fused(given, weight, bias, state, backwards=backwards)) is not None:
            return made
        steps = [squeeze(step, 1) for step in split(given, 1, 1)]
        del given
        outputs = []
        for step in reversed(steps) if backwards else steps:
            state = self.cell(step, linear.linear(state[0], weight, bias), state)
            outputs.append(state[0])
        return stack(outputs[::-1] if backwards else outputs, 1), state

    def _given(self, state: tuple[Tensor, ...] | None) -> list[State] | None:
        """Split a state [layers * directions, N, H] into one state per layer and direction."""
        if state is None:
            return None
        return [tuple(lowered(part[i]) for part in state) for i in range(state[0].shape[0])]

    def extra_repr(self) -> str:
        width = getattr(self, "weight_ih_l0").shape[1]  # noqa: B009 - it is set by name
        return f"{width}, {self.hidden_size}" + (f", num_layers={self.num_layers}" if self.num_layers > 1 else "")


class LSTM(_Recurrent):
    """An LSTM: c = f c + i g and h = o tanh(c), with gates i, f, g, o; returns outputs and (h, c) of the last step.
    Shapes are torch.nn's: h and c are [layers * directions, N, H]. Raises UserError for ``proj_size``."""

    gates = 4
    states = 2

    def cell(self, given: Tensor, recurrent: Tensor, state: State) -> State:
        i, f, g, o = chunk(elementwise.add(given, recurrent), 4, 1)
        kept = elementwise.mul(elementwise.sigmoid(f), state[1])
        c = elementwise.add(kept, elementwise.mul(elementwise.sigmoid(i), elementwise.tanh(g)))
        return elementwise.mul(elementwise.sigmoid(o), elementwise.tanh(c)), c

    def fused(self, given: Tensor, weight: Tensor, bias: Tensor | None, state: State, *, backwards: bool
              ) -> tuple[Tensor, State] | None:
        return recurrent.lstm(donate(given), weight, bias, *state, backwards=backwards)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, (h, c) = self.run(x, self._given(state))
        return outputs, (h, c)


class GRU(_Recurrent):
    """A GRU: h = (1 - z) n + z h, with n = tanh(W x + r * (U h)) and gates r, z; returns outputs and the last h."""

    gates = 3
    states = 1

    def cell(self, given: Tensor, recurrent: Tensor, state: State) -> State:
        size = self.hidden_size
        (gates_x, n_x), (gates_h, n_h) = (split(y, [2 * size, size], 1) for y in (given, recurrent))
        r, z = chunk(elementwise.sigmoid(elementwise.add(gates_x, gates_h)), 2, 1)
        n = elementwise.tanh(elementwise.add(n_x, elementwise.mul(r, n_h)))
        return (elementwise.add(n, elementwise.mul(z, elementwise.sub(state[0], n))),)

    def fused(self, given: Tensor, weight: Tensor, bias: Tensor | None, state: State, *, backwards: bool
              ) -> tuple[Tensor, State] | None:
        return recurrent.gru(donate(given), weight, bias, *state, backwards=backwards)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (h,) = self.run(x, self._given(None if state is None else (state,)))
        return outputs, h


class RNN(_Recurrent):
    """An Elman RNN (1990): h = tanh(W x + U h), or relu instead of tanh; returns outputs and the last h."""

    gates = 1
    states = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise UserError(f"RNN: nonlinearity must be tanh or relu, not {nonlinearity!r}")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity

    def cell(self, given: Tensor, recurrent: Tensor, state: State) -> State:
        function = elementwise.tanh if self.nonlinearity == "tanh" else elementwise.relu
        return (function(elementwise.add(given, recurrent)),)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (h,) = self.run(x, self._given(None if state is None else (state,)))
        return outputs, h
