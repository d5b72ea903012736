"""The gaps whose modes a search may change, and simple assignments of modes from which it starts."""

from collections.abc import Iterator

import numpy as np

from minidl.plan.trace import Trace
from minidl.planning.problem import DROP, SWAP, Array, Problem, change_of, live_bytes

KEPT = (0.0, 0.2, 0.4, 0.6, 0.8)                  # shares of the budget that simple choices keep
DROPPED = tuple(n / 10 for n in range(11))        # shares of the remaining bytes that simple choices drop
SHORT_GAP = 0.01      # of the iteration: shorter gaps outside the memory peak are ignored, except over crowded calls
CROWDED = 0.5         # a call is crowded if it needs this share of the budget though all long gaps are away


def most_held(facts: Problem) -> Array:
    """Return the numbers of the gaps around the call during which gaps hold most bytes, which is about the peak."""
    held = _change(facts, np.ones(len(facts.gap_call), np.bool_))
    fullest = int(np.argmax(np.cumsum(held)))
    there = ((facts.gap_call < fullest) & (facts.gap_next >= fullest)) | (facts.gap_head > fullest)
    gaps: Array = np.nonzero(there)[0]
    return gaps


def movable(facts: Problem, budget: int) -> tuple[Array, Array]:
    """Return the gaps whose modes a search may change:
    the gaps at the memory peak, and others that are changed less often. The others matter only if the budget is a small
    part of the peak: long gaps, gaps without a swap-in, and shorter gaps over calls during which many bytes are in use,
    for example the slices of a batch that is normalized."""
    often = most_held(facts)
    starts = np.concatenate([[0.0], np.cumsum(facts.algorithm_seconds[facts.algorithm_ptr[:-1]])])
    seconds = starts[facts.gap_next] - starts[facts.gap_call] + starts[np.maximum(facts.gap_head, 0)]
    there, away = np.zeros(len(seconds), np.bool_), seconds >= SHORT_GAP * facts.seconds
    away |= (facts.gap_next == len(facts.gap_ptr) - 1) & (facts.gap_head < 0)
    there[often] = away[often] = True
    crowded = live_bytes(facts) - np.cumsum(_change(facts, away))[:-1] > CROWDED * budget
    before = np.concatenate([[0], np.cumsum(crowded)])
    over_crowded = before[facts.gap_next] > before[facts.gap_call + 1]
    return often, np.nonzero((away | over_crowded) & ~there)[0]


def _change(facts: Problem, away: Array) -> Array:
    """Return by how many bytes the tensors whose gaps are marked in ``away`` change from call to call.
    away: bool [gaps]. Result: int64 [calls + 1]; its cumulative sum is their bytes during each call."""
    sizes, begin, end, head = (of[away] for of in (facts.size[facts.gap_tensor], facts.gap_call, facts.gap_next,
                                                   facts.gap_head))
    return change_of(sizes, begin, end, head, len(facts.gap_ptr) - 1)


def least_live(facts: Problem) -> Array:
    """Return the bytes of the tensors on the device when each call starts, if none is evicted."""
    calls = len(facts.gap_ptr) - 1
    made = np.bincount(facts.produced[facts.produced >= 0], facts.size[facts.produced >= 0], minlength=calls)
    least: Array = live_bytes(facts) - made.astype(np.int64)
    return least


def simple_choices(facts: Problem, budget: int) -> Iterator[Array]:
    """Yield simple modes for a search to start from, int64 [gaps].
    Of the tensors in gaps at the memory peak, the latest evicted are kept, up to a share of the budget. Of the
    others, a share is dropped, the least replay time per byte first, and the rest is swapped. Each choice
    comes twice; the second time the other gaps of ``movable`` are swapped, too, for budgets that need it."""
    gaps, others = movable(facts, budget)
    tensors, droppable = facts.gap_tensor[gaps], facts.may_drop[gaps]
    makers = np.maximum(facts.produced[tensors], 0)
    price = facts.algorithm_seconds[facts.algorithm_ptr[makers]] / facts.size[tensors]
    price[~droppable] = np.inf
    latest = np.argsort(-facts.gap_call[gaps], kind="stable")
    held = np.cumsum(facts.size[tensors[latest]])
    by_price = np.argsort(price, kind="stable")
    for kept in KEPT:
        stays = np.zeros(len(gaps), np.bool_)
        stays[latest[:np.searchsorted(held, kept * budget)]] = True
        leaves = by_price[~stays[by_price]]
        held_by = np.cumsum(facts.size[tensors[leaves]])
        for dropped in DROPPED:
            cheap = leaves[:np.searchsorted(held_by, dropped * held_by[-1], side="right")] if len(leaves) else leaves
            mode = np.zeros(len(facts.gap_call), np.int64)
            mode[gaps[leaves]] = SWAP
            mode[gaps[cheap[droppable[cheap]]]] = DROP
            yield mode
            mode = mode.copy()
            mode[others] = SWAP
            yield mode


def alike(trace: Trace, facts: Problem) -> Array:
    """Return for each gap the next gap of the same kind, or -1.
    Gaps are of one kind if their tensors have the same size and are made by the same operation, and if the same
    operations begin and end the gaps: slices of a batch, or repeated blocks of a network."""
    following = np.full(len(facts.gap_call), -1, np.int64)
    latest: dict[tuple[str, str, str, int], int] = {}
    for gap, (tensor, begin, end) in enumerate(zip(facts.gap_tensor, facts.gap_call, facts.gap_next, strict=True)):
        maker = facts.produced[tensor]
        kind = (trace.calls[maker].op if maker >= 0 else "", trace.calls[begin].op,
                trace.calls[end].op if end < len(trace.calls) else "", int(facts.size[tensor]))
        if kind in latest:
            following[latest[kind]] = gap
        latest[kind] = gap
    return following
