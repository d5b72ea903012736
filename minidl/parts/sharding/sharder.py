"""Runs operations on tensors in shards by running operations on the shards, which are ordinary leaves.

Autograd, memory and optimizer see only shards: each gets its own gradient, and an update takes one shard at a time. An
operation that treats rows separately runs shard by shard, and its result is in shards, too. The outputs of a linear
layer are concatenated, the rows of an embedding table are looked up in the shard that has them. For any other operation
the shards are joined first, which needs room for the whole tensor; an operation in place that cannot run shard by shard
raises UserError.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any
from weakref import WeakSet

import numpy as np

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import apply, apply_all
from minidl.errors import UserError
from minidl.memory.storage import Storage
from minidl.meta import Meta, meta
from minidl.op import Attrs, Op
from minidl.ops.shape import CONCAT, between, contiguous
from minidl.ops.update import full
from minidl.parts.keeper import PartKeeper
from minidl.parts.row_writes import WRITES
from minidl.parts.sharding.record import Sharded
from minidl.parts.sharding.rules import RULES, separable
from minidl.parts.slice_rules import Rule
from minidl.tensor import Tensor


class Sharder(PartKeeper):
    """Keeps parameters in shards, and runs calls on them.

    shard_bytes: a parameter of more bytes is cut into as few shards as possible, of at most that size each. A shard has
    at least one row."""

    def __init__(self, shard_bytes: int) -> None:
        self.shard_bytes = shard_bytes
        self._copies: WeakSet[Storage] = WeakSet()  # joined copies of shards that the program takes for views

    # Making shards -------------------------------------------------------------------------------------------------
    def parameter(self, described: Meta, *, requires_grad: bool, state: bool = False) -> Sharded | None:
        """Make a parameter in shards, whose numbers of rows differ by at most one. Raises OutOfMemory.
        None if it is small, or has fewer than two dimensions: then it stays whole. described: its shape and dtype."""
        if described.nbytes <= self.shard_bytes or len(described.shape) < 2 or described.shape[0] < 2:
            return None
        rows = described.shape[0]
        count = -(-rows // max(1, self.shard_bytes // (described.nbytes // rows)))
        cuts = [rows * i // count for i in range(count + 1)]
        shards = []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            storage = current().leaf(part_of(described, stop - start), persistent=True)
            storage.requires_grad = requires_grad
            shards.append(Tensor(storage))
        return Sharded(described, self, tuple(shards))

    # Running operations --------------------------------------------------------------------------------------------
    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, donated: int = 0) -> tuple[Storage, ...]:
        """Run a call that has an input in shards; arguments and result as ``Executor.run``, but donation is ignored.
        Raises the errors of the same call on whole tensors, and UserError for a write that cannot run on shards."""
        described = op.describe([x.meta for x in inputs], attrs)
        for storage in inputs:
            storage.retain()
        operands = tuple([Tensor(storage) for storage in inputs])
        if op.mutates is not None:
            self._write(op, operands, attrs)
            return ()
        if (special := RULES.get(op.name)) is not None and (found := special(operands, attrs)) is not None:
            results: tuple[Tensor, ...] = (found,)
        elif (rule := separable(op, operands, attrs)) is not None:
            results = self._by_rows(op, operands, attrs, rule, described)
        else:
            results = apply_all(op, *map(self.joined, operands), **attrs)
            if op.view:
                self._copies.update(result.storage.base for result in results)
        for result in results:
            result.storage.retain()
        return tuple([result.storage for result in results])

    def _by_rows(self, op: Op, operands: Sequence[Tensor], attrs: Attrs, rule: Rule,
                 described: Sequence[Meta]) -> tuple[Tensor, ...]:
        """Run an operation on each shard; return its outputs in shards, or united by the rule's ``fold``.
        described: metas of the outputs of the whole tensors."""
        made = []
        for first, stop in bounds_of(operands):
            own: Attrs = {name: (stop - first, *attrs[name][1:]) for name in rule.shapes}
            if rule.start:
                own[rule.start] = attrs.get(rule.start, 0) + first * prod(operands[0].shape[1:])
            made.append(apply_all(op, *_rows_of_each(operands, rule.along, first, stop), **attrs | own))
        if rule.fold is None:
            return tuple([Tensor(Sharded(whole, self, shards)) for whole, shards
                          in zip(described, zip(*made, strict=True), strict=True)])
        total = made[0][0]
        for (part,) in made[1:]:
            total = apply(rule.fold, total, part)
        return (total,)

    def _write(self, op: Op, operands: Sequence[Tensor], attrs: Attrs) -> None:
        """Run an operation in place, shard by shard. All operands must have the same shape.
        Raises UserError for another shape, and for an operation that does not treat each row separately."""
        shape = next(x.shape for x in operands if isinstance(x.storage, Sharded))
        if op.name not in WRITES and not op.update or any(x.shape != shape for x in operands):
            written = next(x.storage for x in operands if isinstance(x.storage, Sharded))
            raise UserError(f"{op.name} writes or reads {written.named()} in place, and cannot run on shards")
        every = [True] * len(operands)
        for first, stop in bounds_of(operands):
            own = WRITES[op.name](attrs, first, stop, prod(shape[1:])) if op.name in WRITES else {}
            apply_all(op, *_rows_of_each(operands, every, first, stop), **attrs | own)

    def before_write(self, op: Op, inputs: Sequence[Storage]) -> None:
        """Raise UserError if an operation writes to what the program takes for a view of several shards.
        The shards' rows were copied together for it, so the write would be lost."""
        assert op.mutates is not None
        for position in op.mutates(len(inputs)):
            if inputs[position].base in self._copies:
                raise UserError(f"{op.name} would overwrite a copy: {inputs[position].named()} is a view of a "
                                "parameter in shards, and not of one of them")

    # Whole values --------------------------------------------------------------------------------------------------
    def joined(self, x: Tensor) -> Tensor:
        """Return x itself if it is whole, or its shards concatenated; gradients flow through. Raises OutOfMemory."""
        return apply(CONCAT, *shards_of(x), axis=0) if isinstance(x.storage, Sharded) else x

    def look(self, x: Sharded, read: Callable[[Storage], Any], *, joined: bool) -> Any:
        """Return ``read`` of the shards joined in one storage (``joined``), or of each shard, concatenated on the host.
        Raises OutOfMemory."""
        if not joined:
            return np.concatenate([read(shard.storage) for shard in x.shards])
        x.retain()
        with no_grad():
            whole = self.joined(Tensor(x))
        return read(whole.storage)

    def make_leaf(self, x: Sharded) -> None:
        """Make each shard a leaf: cut its lineage."""
        for shard in x.shards:
            current().make_leaf(shard.storage)

    # Gradients -----------------------------------------------------------------------------------------------------
    def gradient(self, x: Sharded) -> Tensor | None:
        """Return the gradients of all shards as one tensor in shards; None if no shard has a gradient.
        A shard without a gradient gets one of zeros."""
        if all(shard.grad is None for shard in x.shards):
            return None
        found = []
        for shard in x.shards:
            if shard.grad is None:
                with no_grad():
                    zeros = full(shard.shape, 0.0, shard.dtype)
                current().make_leaf(zeros.storage)
                shard.grad = zeros
            found.append(shard.grad.alias())
        return Tensor(Sharded(x.meta, self, tuple(found)))

    def set_gradient(self, x: Sharded, value: Tensor | None) -> None:
        """Set the gradient of each shard to the shard's rows of ``value``, or to None."""
        for shard, (start, stop) in zip(x.shards, x.bounds, strict=True):
            if value is None:
                shard.grad = None
                continue
            with no_grad():
                rows = contiguous(rows_of(value, start, stop))
            current().make_leaf(rows.storage)
            shard.grad = rows.alias()


def part_of(described: Meta, rows: int) -> Meta:
    """Return the meta of a dense tensor with ``rows`` rows of the shape and dtype of the rows of ``described``."""
    return meta((rows, *described.shape[1:]), described.dtype)


def bounds_of(operands: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Return (first row, row after the last) of each shard of the first operand that is in shards."""
    return next(x.storage.bounds for x in operands if isinstance(x.storage, Sharded))


def rows_of(x: Tensor, start: int, stop: int) -> Tensor:
    """Return the rows ``start`` to ``stop - 1`` of x: a shard if it has exactly these rows, else a view or a copy."""
    if isinstance(x.storage, Sharded):
        for shard, bounds in zip(x.storage.shards, x.storage.bounds, strict=True):
            if bounds == (start, stop):
                return shard
    return between(x, 0, start, stop)


def _rows_of_each(operands: Sequence[Tensor], along: Sequence[bool], start: int, stop: int) -> list[Tensor]:
    return [rows_of(x, start, stop) if one else x for x, one in zip(operands, along, strict=True)]


def shards_of(x: Tensor) -> tuple[Tensor, ...]:
    """Return the shards of a tensor, or a tuple of the tensor itself if it is whole."""
    return x.storage.shards if isinstance(x.storage, Sharded) else (x,)


def shard_bounds(x: Tensor) -> list[tuple[int, int]]:
    """Return (first row, row after the last) of each shard of a tensor; [(0, rows)] for a whole tensor."""
    if isinstance(x.storage, Sharded):
        return x.storage.bounds
    return [(0, x.shape[0] if x.shape else 1)]
