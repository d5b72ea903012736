"""The two operations between ranks. Each is a call like any other: in the log, the trace and the plan, with a cost.

  sum_ranks     adds up the tensors of all ranks, in the order of ranks and operands, on all of them
  gather_ranks  joins the tensors of all ranks along the first dimension, in rank order

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
from minidl.ranks import Ranks
from minidl.ranks.consensus import Alone

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.memory.storage import Storage


def _sum_infer(*parts: Meta, ranks: Ranks, turn: str) -> Meta:
    return meta(parts[0].shape, parts[0].dtype)


def _gather_infer(x: Meta, *, ranks: Ranks, rows: tuple[int, ...], turn: str) -> Meta:
    if not x.shape or x.shape[0] != rows[ranks.rank]:
        raise ShapeError(f"{ranks} has {rows[ranks.rank]} of the rows {list(rows)}, and not those of {x}")
    return meta((sum(rows), *x.shape[1:]), x.dtype)


def _sum_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Each rank sends a k-th of its tensors to each other rank, and then a k-th of the sum: as many bytes each way."""
    count = attrs["ranks"].count
    return Cost(0.0, (len(inputs) + 1.0) * (count - 1) / count * inputs[0].nbytes, "exchange")


def _gather_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(0.0, float(outputs[0].nbytes - inputs[0].nbytes), "exchange")


SUM_RANKS = Op("sum_ranks", _sum_infer, _sum_cost, donates=((0, 0),), long_lived=True, replayable=False,
               volatile=("turn",))
GATHER_RANKS = Op("gather_ranks", _gather_infer, _gather_cost, exact=True, replayable=False, volatile=("turn",))


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
