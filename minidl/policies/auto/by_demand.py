"""Modes that policies on demand would choose, from a dry run of each on the trace, in bytes and without addresses.

The calls are walked in order. If a call's outputs do not fit beside the tensors on the device, tensors leave: those of
the lowest rank under a rule first, each by a drop or a swap, whichever costs less. A dropped tensor is replayed before
its next use, and that replay, too, may make others leave. An eviction counts for the whole gap between two uses.

    dtr         seconds of the return, divided by bytes and by calls since the last use (``policies/dtr_swap``)
    msps        seconds of the return, divided by bytes (Capuchin, equation 2)
    first made  what can be replayed faster than swapped, in the order of production (``policies/recompute``)
    last used   the latest next use (Belady)

A start for a search where others lead to no plan. Work is counted in calls looked at, so results are the same anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from math import inf
from typing import NamedTuple

import numpy as np

from minidl.plan.costs import Limits
from minidl.planning.problem import DROP, SWAP, Array, Problem

MOST_LOOKS = 400_000  # calls that the dry run of one rule may look at: about a quarter of a second


class Victim(NamedTuple):
    """A tensor that may leave. seconds: of its cheaper way back; copies: of its two copies; idle: calls since its last
    use; made, next_use: calls, of which made is -1 for a tensor from before the iteration."""

    seconds: float
    copies: float
    nbytes: int
    idle: int
    made: int
    next_use: int


Rule = Callable[[Victim], tuple[float, ...]]
RULES: dict[str, Rule] = {
    "dtr": lambda v: (v.seconds / (v.nbytes * (v.idle + 1)),),
    "msps": lambda v: (v.seconds / v.nbytes,),
    "first made": lambda v: (v.seconds >= v.copies, v.made),
    "last used": lambda v: (-v.next_use,),
}


def by_demand(facts: Problem, limits: Limits) -> Iterator[Array]:
    """Yield the modes that result from each rule, int64 [gaps]; some may exceed the budget.
    A rule whose dry run would look at more than MOST_LOOKS calls is left out."""
    for rule in RULES.values():
        walk = _Walk(facts, limits, rule)
        if walk.done():
            yield walk.mode


class _Walk:
    """The dry run of one rule: which tensors are on the device, dropped and on the host, call by call."""

    def __init__(self, facts: Problem, limits: Limits, rule: Rule) -> None:
        self.rule, self.limits = rule, limits
        self.mode = np.zeros(len(facts.gap_call), np.int64)
        self.looks = MOST_LOOKS
        calls = len(facts.in_ptr) - 1

        def lists(pointers: Array, values: Array) -> list[list[int]]:
            return [values[pointers[k]:pointers[k + 1]].tolist() for k in range(calls)]

        self.reads, self.makes = lists(facts.in_ptr, facts.in_idx), lists(facts.out_ptr, facts.out_idx)
        self.frees, self.takes = lists(facts.free_ptr, facts.free_idx), lists(facts.may_ptr, facts.may_in)
        self.size, self.made = facts.size.tolist(), facts.produced.tolist()
        self.seconds = facts.algorithm_seconds[facts.algorithm_ptr[:-1]].tolist()
        self.workspace = facts.algorithm_bytes[facts.algorithm_ptr[1:] - 1].tolist()  # the smallest of each call
        self.copies = (facts.out_seconds + facts.in_seconds).tolist()
        self.may_drop, self.next_use = facts.may_drop.tolist(), facts.gap_next.tolist()
        self.gaps = {(t, k): g for g, (t, k, head) in enumerate(zip(
            facts.gap_tensor.tolist(), facts.gap_call.tolist(), facts.gap_head.tolist(), strict=True)) if head < 0}
        self.here = {t: -1 for t, made in enumerate(self.made) if made < 0}  # tensor -> the call that used it last
        self.away: set[int] = set()  # on the host
        self.used = sum(self.size[t] for t in self.here)
        self.on_host = 0

    def done(self) -> bool:
        """Walk all calls. False if that takes too many looks."""
        for k, reads in enumerate(self.reads):
            pinned = {*reads, *self.makes[k]}
            self._bring_back(k, reads, pinned)
            given = sum(self.size[t] for t in self.takes[k] if t in self.frees[k])
            need = sum(self.size[t] for t in self.makes[k])
            self._make_room(k, need - given + self.workspace[k], pinned)
            self.used += need
            self.here.update(dict.fromkeys(pinned, k))
            for t in self.frees[k]:
                if self.here.pop(t, None) is not None:
                    self.used -= self.size[t]
                self._forget(t)
            if self.looks < 0:
                return False
        return True

    def _forget(self, tensor: int) -> None:
        if tensor in self.away:
            self.away.remove(tensor)
            self.on_host -= self.size[tensor]

    def _missing(self, tensor: int) -> list[int] | None:
        """Return, in program order, the calls that would compute a tensor without bytes; None if no calls can."""
        found, wanted = set[int](), [tensor]
        while wanted:
            call = self.made[wanted.pop()]
            self.looks -= 1
            if call < 0:
                return None
            if call not in found:
                found.add(call)
                wanted += [t for t in self.reads[call] if t not in self.here and t not in self.away]
        return sorted(found)

    def _bring_back(self, k: int, reads: list[int], pinned: Set[int]) -> None:
        """Bring the inputs of call ``k`` to the device, by copies and replays, which free what only they use."""
        for t in reads:
            if t in self.here:
                continue
            calls = [] if t in self.away else self._missing(t) or []
            wanted = {i for c in calls for i in self.reads[c]} - set(self.here)
            last = {i: c for c in calls for i in self.reads[c]}
            temporary: set[int] = set()
            for c in calls:
                swapped = sum(self.size[i] for i in self.reads[c] if i in wanted & self.away - temporary)
                made = [i for i in self.makes[c] if i not in self.here and i not in temporary]
                self._make_room(k, swapped + sum(self.size[i] for i in made) + self.workspace[c],
                                pinned | set(last) | {t})
                temporary |= {*made, *(wanted & self.away & set(self.reads[c]))}
                self.used += swapped + sum(self.size[i] for i in made)
                over = {i for i in temporary if last.get(i, -1) <= c and i != t}
                self.used -= sum(self.size[i] for i in over)
                temporary -= over
            if t not in temporary:
                self._make_room(k, self.size[t], pinned)
                self.used += self.size[t]
            self.here[t] = k
            self._forget(t)

    def _make_room(self, k: int, need: int, pinned: Set[int]) -> None:
        """Let tensors leave until ``need`` bytes fit, or none is left that may. pinned: tensors that stay."""
        if self.used + need <= self.limits.device_bytes:
            return
        ranked = []
        for t, last in self.here.items():
            gap = self.gaps.get((t, last))
            if gap is not None and t not in pinned and self.next_use[gap] >= k and self.looks >= 0:
                copies = self.copies[t] if self.on_host + self.size[t] <= self.limits.host_bytes else inf
                calls = self._missing(t) if self.may_drop[gap] else None
                again = inf if calls is None else sum(self.seconds[c] for c in calls)
                if min(again, copies) < inf:
                    victim = Victim(min(again, copies), copies, self.size[t], k - last, self.made[t],
                                    self.next_use[gap])
                    ranked.append((self.rule(victim), t, gap, again <= copies))
        for _, t, gap, drops in sorted(ranked):
            if self.used + need <= self.limits.device_bytes:
                return
            if not drops and self.on_host + self.size[t] > self.limits.host_bytes:
                continue
            del self.here[t]
            self.used -= self.size[t]
            self.mode[gap] = DROP if drops else SWAP
            if not drops:
                self.away.add(t)
                self.on_host += self.size[t]
