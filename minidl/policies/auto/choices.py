"""Which gaps a search considers, and the simple choices of modes that it begins with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidl.plan.trace import Trace
from minidl.planning.problem import DROP, SWAP, Array, Problem

KEPT = (0.0, 0.2, 0.4, 0.6, 0.8)                  # a first choice keeps one of these shares of the budget,
DROPPED = tuple(n / 10 for n in range(11))        # and drops one of these of the rest
SHORT_GAP = 0.01      # of the iteration: shorter gaps away from the fullest moment are not considered


def movable(facts: Problem) -> tuple[Array, Array]:
    """The gaps worth considering, as two groups: those at the iteration's fullest moment; the other long ones, which
    matter only when the budget is a small part of what is needed."""
    calls = len(facts.gap_ptr) - 1
    held = np.zeros(calls + 1)
    sizes = facts.size[facts.gap_tensor]
    np.add.at(held, facts.gap_call + 1, sizes)
    np.add.at(held, facts.gap_next, -sizes)
    round_the_end = facts.gap_head >= 0
    held[0] += sizes[round_the_end].sum()
    np.add.at(held, facts.gap_head[round_the_end], -sizes[round_the_end])
    fullest = int(np.argmax(np.cumsum(held)))
    there = ((facts.gap_call < fullest) & (facts.gap_next >= fullest)) | (facts.gap_head > fullest)
    starts = np.concatenate([[0.0], np.cumsum(facts.algorithm_seconds[facts.algorithm_ptr[:-1]])])
    seconds = starts[facts.gap_next] - starts[facts.gap_call] + starts[np.maximum(facts.gap_head, 0)]
    long = seconds >= SHORT_GAP * facts.seconds
    return np.nonzero(there)[0], np.nonzero(long & ~there)[0]


def simple_choices(facts: Problem, budget: int) -> Iterator[Array]:
    """Choices to begin with: of what is there at the fullest moment, what was made last stays, up to some share of the
    budget; of the rest, what is cheapest to make again for its bytes is dropped, and the others swapped."""
    gaps, _ = movable(facts)
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
