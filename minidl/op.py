"""An operation, defined once as a value made of plain functions; and the signature of calls.

An Op knows shapes, costs and gradients. It knows no arrays and no device: how to run it is the function of the
same name in a device's kernel table.
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
    """Each input read once, each output written once, one operation an element."""
    nbytes = sum(m.nbytes for m in inputs) + sum(m.nbytes for m in outputs)
    return Cost(float(sum(m.size for m in outputs)), float(nbytes), "elementwise")


@dataclass(frozen=True, eq=False)
class Op:
    """One operation.

    infer     ``(*input metas, **attrs) -> Meta | tuple[Meta, ...]``; positional parameters name the inputs,
              keyword-only ones the attributes. Raises ShapeError. An in-place op returns ().
    cost      ``(inputs, outputs, attrs) -> Cost``.
    vjp       gradient in terms of ops: ``(needs, d<output>..., <saved>...) -> tuple`` with one gradient (or None) an
              input. Parameters that name an input or output are saved for it; ``<name>_shape`` and ``<name>_dtype``
              are free; attributes come by name. ``needs[i]`` says whether input i wants its gradient.
              ``<input>_partial`` is what has arrived for that input from other calls (or None): the formula must return
              the sum with it.
    saves     which of the vjp's inputs and outputs are kept, where that depends on what is needed:
              ``(attrs, needs) -> names``; the others arrive as None.
    outputs   names of the outputs. The differentiable one comes first.
    donates   pairs (output, input): every device's kernel may be given the same address for both, where they have one
              shape, dtype and layout: each element is read before it is written. Judged for every kernel by the tests.
    mutates   number of inputs -> indices of those written in place (names of such ops end in ``_``).
    view      the outputs are other descriptions of the first input's bytes; nothing is launched.
    volatile  attributes that may differ from one iteration to the next (seeds, rates, step numbers).
    update    an optimizer's step: the first call after one starts a new iteration.
    long_lived  the outputs usually outlive the activations: placed with the persistent storages.
    replayable  the same inputs and attributes give the same outputs again.
    checks    the kernel may refuse the values of its inputs, before it writes anything: the program waits for the
              kernel, so that the call itself raises the error. A GPU's kernels raise nothing.
    integers  names of the inputs that are integers: labels, row numbers.
    exact     the other inputs may be integers too: the results are exact.
    slices    how a call runs on slices of its batch (``slicing.rules``); None: on whole tensors.
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

    def __post_init__(self) -> None:
        if (self.mutates is not None) != self.name.endswith("_"):
            raise AssertionError(f"{self.name}: in-place operations, and only these, end in _")
        params = inspect.signature(self.infer).parameters.values()
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
        """The descriptions of a call's outputs. Raises ShapeError."""
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
        """For each input (a storage), whether it wants a gradient through a call; () if none does."""
        needs = tuple([x.requires_grad for x in inputs]) if self.vjp is not None else ()
        return needs if True in needs else ()

    def saved_indices(self, attrs: Attrs, needs: tuple[bool, ...], n_inputs: int) -> tuple[int, ...]:
        """Which of inputs + outputs a call must keep for its gradient, as indices into that sequence."""
        wanted = self.vjp_names if self.saves is None else self.saves(attrs, needs)
        indices = [i for i, name in enumerate(self.inputs[:n_inputs]) if name in wanted]
        return tuple(indices + [n_inputs + i for i, name in enumerate(self.outputs) if name in wanted])


READ = Op("read", lambda x: (), lambda inputs, outputs, attrs: Cost(0.0, float(inputs[0].nbytes), "link"), exact=True)
"""Reading a value: an access like any other, carried out by the device itself."""


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """The facts that follow from an op, its inputs' metas and its fixed attributes; one object for all such calls.

    ``algorithms`` are the permitted ones, fastest first; ``flops`` of one call; ``donates`` those of the op's pairs
    whose descriptions coincide. Guided execution compares calls by this object.
    """

    op: Op
    inputs: tuple[Meta, ...]
    outputs: tuple[Meta, ...]
    algorithms: tuple[Algorithm, ...]
    flops: float = 0.0
    donates: tuple[tuple[int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        # An optional input may not have been given.
        object.__setattr__(self, "donates", tuple(
            (o, i) for o, i in self.op.donates
            if i < len(self.inputs) and _lie_alike(self.inputs[i], self.outputs[o])))

    @property
    def input_bytes(self) -> tuple[int, ...]:
        """Bytes of each input, as its description has them."""
        return tuple(m.nbytes for m in self.inputs)

    @property
    def output_bytes(self) -> tuple[int, ...]:
        """Bytes of each output."""
        return tuple(m.nbytes for m in self.outputs)


def _lie_alike(one: Meta, other: Meta) -> bool:
    """True if each element of two dense tensors has its bytes at the same place, if both start at one address.

    The same bytes in another shape are not enough: a kernel that broadcasts one operand reads it again for later rows.
    """
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    return one.contiguous and other.contiguous or one.strides == other.strides
