"""Tensors of which each rank keeps its rows alone: optimizer states (ZeRO-1) and gradients (ZeRO-2).

Such a tensor is cut along its first dimension as a batch is, and a rank keeps the rows of the slices that it holds. An
update runs on these rows of parameter, states and gradient; then the ranks exchange the updated rows of the parameter.
Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl.memory.storage import Storage
from minidl.meta import Meta, meta
from minidl.op import Attrs, Op
from minidl.parts.row_writes import WRITES
from minidl.parts.slice_rules import sizes_of
from minidl.parts.slicing.exchange import GATHER_ROWS
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.rows import narrowed

if TYPE_CHECKING:
    from minidl.parts.slicing.joiner import Joiner


def divisible(slicer: Joiner, described: Meta) -> bool:
    """True if each slice gets a row of such a tensor; a smaller one is whole on each rank."""
    return bool(described.shape) and described.shape[0] >= slicer.count and described.size > 0


def divided_leaf(slicer: Joiner, described: Meta) -> Logical:
    """Return an uninitialised persistent leaf, of which this rank has its rows. Raises OutOfMemory."""
    made = Logical(described, slicer, sizes_of(described.shape[0], slicer.count), divided=True)
    for at, index in enumerate(slicer.held):
        rows = meta((made.sizes[index], *described.shape[1:]), described.dtype)
        made.put_part(at, slicer.executor.leaf(rows, persistent=True))
    return made


def write_rows(slicer: Joiner, op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> None:
    """Run an operation in place, some of whose operands are divided, on this rank's rows of each operand.
    Then exchange the rows of the operands that it writes and every rank has whole. Raises ShapeError, OutOfMemory."""
    executor = slicer.executor
    whole: dict[int, Storage] = {i: slicer.real(x) for i, x in enumerate(inputs) if not _in_rows(x)}
    try:
        for at, index in enumerate(slicer.held):
            parts, made = [], []
            for i, x in enumerate(inputs):
                if i not in whole:
                    assert isinstance(x, Logical)
                    parts.append(x.part(at))
                    continue
                sizes = sizes_of(x.meta.shape[0], slicer.count)
                parts.append(narrowed(executor, whole[i], sum(sizes[:index]), sizes[index]))
                made.append(parts[i])
            first = inputs[0].meta
            sizes = sizes_of(first.shape[0], slicer.count)
            start = sum(sizes[:index])
            own = (WRITES[op.name](attrs, start, start + sizes[index], first.size // first.shape[0])
                   if op.name in WRITES else {})
            executor.run(op, tuple(parts), attrs | own)
            for x in made:
                x.release()
        assert op.mutates is not None
        written = tuple([whole[i] for i in op.mutates(len(inputs)) if i in whole])
        if written:
            updated = executor.tracker.updated
            executor.run(GATHER_ROWS, written, {"ranks": slicer.ranks, "slices": slicer.count,
                                                "turn": slicer.consensus.turn()})
            executor.tracker.updated = updated  # the exchange belongs to an optimizer's step only if ``op`` does
    finally:
        for x in whole.values():
            x.release()


def _in_rows(x: Storage) -> bool:
    return isinstance(x, Logical) and bool(x.sizes)
