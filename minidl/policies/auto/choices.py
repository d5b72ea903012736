"""Which gaps a search considers, and the simple choices of modes that it begins with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidl.plan.trace import Trace
from minidl.planning.problem import DROP, SWAP, Array, Problem

KEPT = (0.0, 0.2, 0.4, 0.6, 0.8)                  # a first choice keeps one of these shares of the budget,
DROPPED = tuple(n / 10 for n in range(11))        # and drops one of these of the rest
SHORT_GAP = 0.01      # of the iteration: shorter gaps away from the fullest moment are not considered, unless they
CROWDED = 0.5         # lie over a call that needs so much of the budget when all others are away


def most_held(facts: Problem) -> Array:
    """The gaps at the iteration's fullest moment."""
    held = _change(facts, np.ones(len(facts.gap_call), np.bool_))
    fullest = int(np.argmax(np.cumsum(held)))
    there = ((facts.gap_call < fullest) & (facts.gap_next >= fullest)) | (facts.gap_head > fullest)
    gaps: Array = np.nonzero(there)[0]
    return gaps


def movable(facts: Problem, budget: int) -> tuple[Array, Array]:
    """The gaps worth considering, as two groups: those at the iteration's fullest moment; other ones, which matter only
    when the budget is a small part of what is needed: long ones, and shorter ones that lie over crowded calls, which
    with all of these away still need a large part of the budget (slices of a batch that is normalized, for one)."""
    often = most_held(facts)
    starts = np.concatenate([[0.0], np.cumsum(facts.algorithm_seconds[facts.algorithm_ptr[:-1]])])
    seconds = starts[facts.gap_next] - starts[facts.gap_call] + starts[np.maximum(facts.gap_head, 0)]
    there, away = np.zeros(len(seconds), np.bool_), seconds >= SHORT_GAP * facts.seconds
    there[often] = away[often] = True
    crowded = live_bytes(facts) - np.cumsum(_change(facts, away))[:-1] > CROWDED * budget
    before = np.concatenate([[0], np.cumsum(crowded)])
    over_crowded = before[facts.gap_next] > before[facts.gap_call + 1]
    return often, np.nonzero((away | over_crowded) & ~there)[0]


def _change(facts: Problem, away: Array) -> Array:
    """Per call: how many more bytes are in some gaps, given by a mask, than at the call before."""
    change = np.zeros(len(facts.gap_ptr), np.int64)
    sizes, begin, end, head = (of[away] for of in (facts.size[facts.gap_tensor], facts.gap_call, facts.gap_next,
                                                   facts.gap_head))
    np.add.at(change, begin + 1, sizes)
    np.subtract.at(change, end, sizes)
    round_the_end = head >= 0
    change[0] += sizes[round_the_end].sum()
    np.subtract.at(change, head[round_the_end], sizes[round_the_end])
    return change


def live_bytes(facts: Problem) -> Array:
    """Per call: bytes on the device while it runs, were nothing evicted and nothing written over."""
    calls = len(facts.gap_ptr) - 1
    change = np.zeros(calls + 1, np.int64)
    np.add.at(change, np.maximum(facts.produced, 0), facts.size)
    freed_by = np.repeat(np.arange(calls), np.diff(facts.free_ptr))
    np.subtract.at(change, freed_by + 1, facts.size[facts.free_idx])
    live: Array = np.cumsum(change)[:calls]
    return live


def simple_choices(facts: Problem, budget: int) -> Iterator[Array]:
    """Choices to begin with: of what is there at the fullest moment, what was made last stays, up to some share of the
    budget; of the rest, what is cheapest to make again for its bytes is dropped, and the others swapped. Each comes
    twice: the second time everything else that is considered is swapped, too, for where nothing less has room."""
    gaps, others = movable(facts, budget)
    tensors, droppable = facts.gap_tensor[gaps], facts.can_drop[gaps]
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
    """For each gap the next one of the same kind, -1 for the last: of tensors of one size, between operations of the
    same names, made by one of the same name. Slices of a batch are of a kind, and so are blocks that come again."""
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
