"""Defines Op, an operation as a set of plain functions, and Signature, what calls with equal shapes have in common.

An Op knows shapes, costs and gradients. It knows no arrays and no device: the function that computes it is found by
its name in each device's table of kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from minidl.errors import ShapeError, WrongKind
from minidl.meta import Algorithm, Cost, Meta
from minidl.parts.slice_rules import Slices

Attrs = dict[str, Any]


def elementwise_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of reading each input once, writing each output once, and one FLOP per output element."""
    nbytes = sum(m.nbytes for m in inputs) + sum(m.nbytes for m in outputs)
    return Cost(float(sum(m.size for m in outputs)), float(nbytes), "elementwise")


@dataclass(frozen=True, eq=False)
class Op:
    """One operation.

    infer     ``(*input metas, **attrs) -> Meta | tuple[Meta, ...]``; positional parameters name the inputs,
              keyword-only ones the attributes. Raises ShapeError for inputs that do not fit. An in-place op returns ().
    cost      ``(inputs, outputs, attrs) -> Cost``.
    vjp       gradient in terms of ops: ``(needs, d<output>..., <saved>...) -> tuple`` with one gradient (or None) an
              input. Parameters that name an input or output are saved for it; ``<name>_shape`` and ``<name>_dtype``
              are free; attributes come by name. ``needs[i]`` says whether input i wants its gradient.
              ``<input>_partial`` is the sum of the gradients for that input from other calls so far (or None): the
              formula must add its own gradient to it and return the sum.
    saves     ``(attrs, needs) -> names`` of the inputs and outputs that a call saves for its vjp, if that depends on
              which gradients are needed; the vjp gets None for the others. None: all that the vjp names.
    outputs   names of the outputs. The differentiable one comes first.
    donates   pairs (output, input) that may share one address if both have one shape, dtype and layout: every kernel
              reads each element of the input before it writes that element of the output.
    mutates   ``number of inputs -> indices`` of the inputs that are written in place. The op's name then ends in ``_``.
    view      True if the output shows the first input's bytes in another shape; nothing is launched.
    volatile  names of attributes that may differ from one iteration to the next (seeds, rates, step numbers).
    update    True for an optimizer's step: the first other call after it starts a new iteration.
    long_lived  True if outputs usually outlive the activations; they are placed with the persistent storages.
    replayable  True if the same inputs and attributes give the same outputs again. Else the outputs are leaves, from
              which replays start (``makes_leaves``).
    checks    True if the kernel may refuse the values of its inputs, before it writes anything. The program then waits
              for the kernel, so that the call itself raises the error. A GPU's kernels raise nothing.
    integers  names of the inputs that must be integers: labels, row numbers.
    exact     True if the other inputs may be integers too.
    slices    how a call runs on slices of its batch (``parts.slice_rules``); None: only on whole tensors.
    """

    name: str
    infer: Callable[..., Meta | tuple[Meta, ...]]
    cost: Callable[[Sequence[Meta], Sequence[Meta], Attrs], Cost] = elementwise_cost
    vjp: Callable[..., tuple[Any, ...]] | None = None
    saves: Callable[[Attrs, tuple[bool, ...]], Sequence[str]] | None = None
    outputs: tuple[str, ...] = ("y",)
    donates: tuple[tuple[int, int], ...] = ()
    mutates: Callable[[int], Sequence[int]] | None = None
    view: bool = False
    volatile: tuple[str, ...] = ()
    update: bool = False
    long_lived: bool = False
    replayable: bool = True
    checks: bool = False
    integers: tuple[str, ...] = ()
    exact: bool = False
    slices: Slices | None = None
    inputs: tuple[str, ...] = field(init=False)
    vjp_names: tuple[str, ...] = field(init=False, default=())
    makes_leaves: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if (self.mutates is not None) != self.name.endswith("_"):
            raise AssertionError(f"{self.name}: in-place operations, and only these, end in _")
        params = inspect.signature(self.infer).parameters.values()
        object.__setattr__(self, "makes_leaves", not self.replayable)
        object.__setattr__(self, "inputs", tuple(p.name for p in params if p.kind == p.POSITIONAL_OR_KEYWORD))
        if self.vjp is not None:
            object.__setattr__(self, "vjp_names", tuple(inspect.signature(self.vjp).parameters))

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self  # an operation is itself, wherever it is named

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def check_dtypes(self, inputs: Sequence[Meta]) -> None:
        """Raises ShapeError for an input of integers that should be of floats, or the other way round."""
        for name, x in zip_longest(self.inputs[:len(inputs)], inputs, fillvalue="tensors"):
            assert isinstance(x, Meta)
            if x.dtype.floating is (name in self.integers) and not (self.exact and not x.dtype.floating):
                kind = "integers" if x.dtype.floating else "floating-point numbers"
                raise ShapeError(f"{self.name} needs {kind} for {name}, not {x}")

    def describe(self, inputs: Sequence[Meta], attrs: Attrs) -> tuple[Meta, ...]:
        """Return the metas of a call's outputs. Raises ShapeError for shapes, dtypes or attributes that do not fit."""
        self.check_dtypes(inputs)
        made = self.infer(*inputs, **attrs)
        return made if isinstance(made, tuple) else (made,)

    def refuse_tensors(self, attrs: Attrs) -> None:
        """Raise WrongKind if an attribute is a handle on a tensor: no gradient flows through an attribute."""
        for name, value in attrs.items():
            if hasattr(value, "storage"):
                raise WrongKind(f"{self.name} takes a number for {name}, not a tensor, whose gradient would be lost: "
                                "x.item() reads one")

    def needs(self, inputs: Sequence[Any]) -> tuple[bool, ...]:
        """Return for each input (a storage) whether it requires a gradient; () if none does or the op has no vjp."""
        needs = tuple([x.requires_grad for x in inputs]) if self.vjp is not None else ()
        return needs if True in needs else ()

    def saved_indices(self, attrs: Attrs, needs: tuple[bool, ...], n_inputs: int) -> tuple[int, ...]:
        """Return the indices into inputs + outputs of the tensors that a call must keep for its gradient."""
        wanted = self.vjp_names if self.saves is None else self.saves(attrs, needs)
        indices = [i for i, name in enumerate(self.inputs[:n_inputs]) if name in wanted]
        return tuple(indices + [n_inputs + i for i, name in enumerate(self.outputs) if name in wanted])


READ = Op("read", lambda x: (), lambda inputs, outputs, attrs: Cost(0.0, float(inputs[0].nbytes), "link"), exact=True)
"""Reading a value: an access like any other, carried out by the device itself."""


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """The facts that all calls with the same op, input metas and fixed attributes share; one object for all of them.

    algorithms  the permitted algorithms, fastest first
    flops       floating-point operations of one call
    donates     the pairs (output, input) of ``op.donates`` whose metas allow the output to take the input's bytes
    Guided execution compares calls by the identity of this object.
    """

    op: Op
    inputs: tuple[Meta, ...]
    outputs: tuple[Meta, ...]
    algorithms: tuple[Algorithm, ...]
    flops: float = 0.0
    donates: tuple[tuple[int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        # An optional input may not have been given, and exchanges have any number of inputs and outputs.
        object.__setattr__(self, "donates", tuple(
            (o, i) for o, i in self.op.donates
            if i < len(self.inputs) and o < len(self.outputs) and _lie_alike(self.inputs[i], self.outputs[o])))

    @property
    def input_bytes(self) -> tuple[int, ...]:
        """Bytes of each input; of a view its own bytes, not those of its base."""
        return tuple(m.nbytes for m in self.inputs)

    @property
    def output_bytes(self) -> tuple[int, ...]:
        """Bytes of each output."""
        return tuple(m.nbytes for m in self.outputs)


def _lie_alike(one: Meta, other: Meta) -> bool:
    """True if two dense tensors that start at one address have each element at the same place.
    The same bytes in another shape are not enough: a kernel that broadcasts one operand reads it again for later
    rows."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    return one.contiguous and other.contiguous or one.strides == other.strides
