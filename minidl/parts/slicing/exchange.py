"""The operations between ranks. Each is a call like any other: in the log, the trace and the plan, with a cost.

  sum_ranks     adds up tensors of all ranks, in the order of the slices, on all of them. Its inputs are several tensors
                of the first slice that a rank holds, then the same tensors of the next slice
  sum_rows      forms the same sums, and leaves each rank its own rows of them
  gather_ranks  joins the tensors of all ranks along the first dimension, in rank order
  gather_rows_  writes to tensors, which every rank has whole, the rows that the other ranks have updated

Their attribute ``turn`` is a text that the ranks compare before the exchange (``minidl.ranks.consensus``).

They have no kernel, as they need more than one device (``device.cpu.exchange``). They cannot be replayed, since the
other ranks would not take part: a replay never leads through one, so its result is kept or swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta
from minidl.op import Attrs, Op
from minidl.ops.shape import CONCAT
from minidl.parts.slice_rules import rows_of_rank
from minidl.ranks import Ranks
from minidl.ranks.consensus import Alone

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.memory.storage import Storage


MOST_OF_A_BUCKET = 64  # tensors that one exchange sums, at most


def _sum_infer(*parts: Meta, ranks: Ranks, each: int, turn: str) -> tuple[Meta, ...]:
    return tuple([meta(x.shape, x.dtype) for x in parts[:len(parts) // each]])


def _gather_infer(x: Meta, *, ranks: Ranks, rows: tuple[int, ...], turn: str) -> Meta:
    if not x.shape or x.shape[0] != rows[ranks.rank]:
        raise ShapeError(f"{ranks} has {rows[ranks.rank]} of the rows {list(rows)}, and not those of {x}")
    return meta((sum(rows), *x.shape[1:]), x.dtype)


def _rows_infer(*parts: Meta, ranks: Ranks, each: int, turn: str) -> tuple[Meta, ...]:
    made = []
    for x in parts[:len(parts) // each]:
        start, stop = rows_of_rank(x.shape[0], each * ranks.count, ranks.rank, ranks.count)
        made.append(meta((stop - start, *x.shape[1:]), x.dtype))
    return tuple(made)


def _gather_rows_infer(*tensors: Meta, ranks: Ranks, slices: int, turn: str) -> tuple[Meta, ...]:
    return ()


def _rows_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Each rank sends a k-th of its tensors to each other rank, or gets it from them."""
    count = attrs["ranks"].count
    return Cost(0.0, (count - 1) / count * sum(x.nbytes for x in inputs), "exchange")


def _sum_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Each rank sends a k-th of its tensors to each other rank, and then a k-th of the sum: as many bytes each way."""
    count = attrs["ranks"].count
    nbytes = sum(x.nbytes for x in inputs) + sum(y.nbytes for y in outputs)
    return Cost(0.0, (count - 1) / count * nbytes, "exchange")


def _gather_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(0.0, float(outputs[0].nbytes - inputs[0].nbytes), "exchange")


SUM_RANKS = Op("sum_ranks", _sum_infer, _sum_cost, donates=tuple([(i, i) for i in range(MOST_OF_A_BUCKET)]),
               long_lived=True, replayable=False, volatile=("turn",))
GATHER_RANKS = Op("gather_ranks", _gather_infer, _gather_cost, exact=True, replayable=False, volatile=("turn",))
SUM_ROWS = Op("sum_rows", _rows_infer, _rows_cost, long_lived=True, replayable=False, volatile=("turn",))
GATHER_ROWS = Op("gather_rows_", _gather_rows_infer, _rows_cost, exact=True, replayable=False, update=True,
                 mutates=range, volatile=("turn",))


def gathered(executor: Executor, parts: tuple[Storage, ...], sizes: tuple[int, ...],
             consensus: Alone) -> Storage:
    """Return all slices of all ranks in one storage, which the caller releases.
    parts: the slices that this rank holds; they stay. sizes: the rows of all slices of all ranks."""
    if consensus.ranks is None:
        return executor.run(CONCAT, parts, {"axis": 0})[0]
    each = len(parts)
    rows = tuple([sum(sizes[i:i + each]) for i in range(0, len(sizes), each)])
    (mine,) = executor.run(CONCAT, parts, {"axis": 0}) if each > 1 else parts
    attrs = {"ranks": consensus.ranks, "rows": rows, "turn": consensus.turn()}
    found = executor.run(GATHER_RANKS, (mine,), attrs)[0]
    if each > 1:
        mine.release()
    return found
