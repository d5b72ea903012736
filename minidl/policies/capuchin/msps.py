"""Which tensor to recompute: memory saving per second (Capuchin, sections 4.4 and 4.5, equation 2 and Algorithm 2).

    MSPS = bytes / (rp_time + ext_time)
    rp_time   the calls that make the tensor again, from the nearest sources: tensors that are live at its back-access,
              candidates not yet chosen among them. What is dead by then is followed to its own inputs.
    ext_time  what dropping this tensor too would add to the choices made before, which start from it: rp_time once for
              each of them.
    When t is chosen, tensors that started from t start from t's sources: choices keep rp_time, candidates add t's.

As listed in the paper this takes quadratic time. Here candidates are found by source, the choices that start from a
tensor are one set of bits, and the largest MSPS is the front of a heap whose entries may be stale. Times are whole
nanoseconds. Knows no links and no memory limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minidl.plan.trace import TensorId
from minidl.planning.lifetimes import BEFORE, Lifetimes

MOST_CALLS = 50  # a lineage of more calls is not worth recomputing; it would make planning quadratic


@dataclass(slots=True)
class Candidate:
    """A tensor that may be evicted after call ``evict`` and is wanted again by call ``back``.

    rp_time is None where it cannot be recomputed; ``sources`` are the other candidates that its replay starts from;
    ``started`` has bit n set if the n-th choice starts its replay from this tensor; ext_time is ext_ct times rp_time.
    """

    tensor_id: TensorId
    nbytes: int
    evict: int
    back: int
    count: int = 1
    free_time: int = 0
    swap_in: int = 0
    swap_out: int = 0
    rp_time: int | None = None
    sources: set[TensorId] = field(default_factory=set)
    started: int = 0
    ext_ct: int = 0

    @property
    def overhead(self) -> int | None:
        """Nanoseconds that recomputing it costs, ext_time included; None if it cannot be."""
        return None if self.rp_time is None else self.rp_time * (1 + self.ext_ct)

    @property
    def msps(self) -> float:
        """Bytes saved a nanosecond."""
        overhead = self.overhead
        return -1.0 if overhead is None else self.nbytes / overhead if overhead else float("inf")


def lineage(facts: Lifetimes, candidate: Candidate, is_away: Callable[[TensorId, int], bool]
            ) -> tuple[set[int], set[TensorId]] | None:
    """The calls to replay for a tensor at its back-access, and the tensors that they start from; None if it cannot be
    made again. ``is_away(tensor, call)``: whether the plan has evicted it when that call runs."""
    calls: set[int] = set()
    sources: set[TensorId] = set()
    wanted = [candidate.tensor_id]
    back = candidate.back
    while wanted:
        k = facts.made[wanted.pop()]
        if k in calls:
            continue
        if k == BEFORE or len(calls) == MOST_CALLS or not facts.trace.calls[k].replayable:
            return None
        calls.add(k)
        for source in dict.fromkeys(facts.trace.calls[k].inputs):
            if facts.written_between(source, k, back):
                return None
            if facts.live_at(source, back) and not is_away(source, back):
                sources.add(source)
            else:
                wanted.append(source)
    return calls, sources


class Recomputation:
    """Algorithm 2 over a set of candidates, one choice at a time."""

    def __init__(self, facts: Lifetimes, seconds: Callable[[int], int], candidates: Iterable[Candidate],
                 is_away: Callable[[TensorId, int], bool], *, overwritten: bool = False) -> None:
        """seconds: a call's duration in nanoseconds; overwritten: ext_time as line 31 of the listing sets it."""
        self.overwritten = overwritten
        self.candidates = {c.tensor_id: c for c in candidates}
        self._chosen = 0
        self._users: dict[TensorId, set[TensorId]] = {}  # candidates by source
        self._heap: list[tuple[float, TensorId]] = []
        for candidate in self.candidates.values():
            found = lineage(facts, candidate, is_away)
            if found is None:
                continue
            calls, sources = found
            candidate.rp_time = sum(map(seconds, calls))
            candidate.sources = sources & self.candidates.keys()
            for source in candidate.sources:
                self._users.setdefault(source, set()).add(candidate.tensor_id)
            self._push(candidate)

    def _push(self, candidate: Candidate) -> None:
        if candidate.rp_time is not None:
            heapq.heappush(self._heap, (-candidate.msps, candidate.tensor_id))

    def best(self, wanted: Callable[[Candidate], bool]) -> Candidate | None:
        """The wanted candidate of the largest MSPS (of equals the smallest id); the unwanted on the way leave."""
        while self._heap:
            msps, tensor_id = self._heap[0]
            candidate = self.candidates.get(tensor_id)
            if candidate is not None and -msps == candidate.msps and wanted(candidate):
                return candidate
            heapq.heappop(self._heap)
        return None

    def recompute(self, chosen: Candidate) -> None:
        """Take a candidate: tensors that start from it now start from its sources."""
        assert chosen.rp_time is not None
        del self.candidates[chosen.tensor_id]
        started = chosen.started | 1 << self._chosen
        self._chosen += 1
        users = [self.candidates[u] for u in self._users.pop(chosen.tensor_id, ())]
        for user in users:
            user.sources.discard(chosen.tensor_id)
        self._start_from_sources(chosen, users)
        for source in chosen.sources:
            self._users[source].discard(chosen.tensor_id)
            candidate = self.candidates[source]
            candidate.started |= started
            candidate.ext_ct = (started if self.overwritten else candidate.started).bit_count()
            self._push(candidate)

    def swap(self, chosen: Candidate, is_away: Callable[[int], bool]) -> None:
        """Take a candidate that will be swapped: who wants it while it is away starts from its sources."""
        del self.candidates[chosen.tensor_id]
        users = [self.candidates[u] for u in self._users.pop(chosen.tensor_id, ())]
        for user in users:
            user.sources.discard(chosen.tensor_id)
        self._start_from_sources(chosen, [user for user in users if is_away(user.back)])
        for source in chosen.sources:
            self._users[source].discard(chosen.tensor_id)

    def _start_from_sources(self, chosen: Candidate, users: Iterable[Candidate]) -> None:
        for user in users:
            if user.rp_time is None:
                continue
            if chosen.rp_time is None:
                user.rp_time = None  # its source is neither there nor to be made again
                continue
            user.rp_time += chosen.rp_time
            user.ext_ct = user.started.bit_count()
            for source in chosen.sources:
                user.sources.add(source)
                self._users[source].add(user.tensor_id)
            self._push(user)
