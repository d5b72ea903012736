"""Choose tensors to recompute by memory saving per second, MSPS (Capuchin, sections 4.4 and 4.5, Algorithm 2).

    MSPS = bytes / (rp_time + ext_time)

    rp_time   time of the calls that replay the tensor from its nearest sources: tensors that are live at its
              back-access, among them candidates not yet chosen. A dead input is traced back to its own inputs.
    ext_time  the time that dropping this tensor adds to the earlier choices that start from it: rp_time for each.

    When t is chosen, tensors that started from t start from t's sources: choices keep rp_time, candidates add t's.

The paper's listing takes quadratic time. Here an index finds candidates by source, the choices that start from a tensor
are one bit set, and the largest MSPS is at the front of a heap with lazy deletion. Times are whole nanoseconds. Knows
no links and no memory limit.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minidl.plan.trace import TensorId
from minidl.planning.lifetimes import BEFORE, Lifetimes

MOST_CALLS = 50  # a lineage of more calls is not worth recomputing; it would make planning quadratic


@dataclass(slots=True)
class GapCandidate:
    """A tensor that may be evicted after call ``evict`` and is used next by call ``back``.
    count: the number of the access before that gap, from 1. All times are nanoseconds. rp_time is None
    if no replay can make the tensor; ``sources`` are the other candidates from which its replay starts;
    ``started`` has bit n set if the replay of the n-th choice starts from this tensor; ext_time is ext_ct * rp_time."""

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
        """Nanoseconds of the tensor's replay, with ext_time added; None if no replay can make the tensor."""
        return None if self.rp_time is None else self.rp_time * (1 + self.ext_ct)

    @property
    def msps(self) -> float:
        """The tensor's bytes divided by ``overhead``, in bytes per ns (equation 2): -1 for None, infinity for 0 ns."""
        overhead = self.overhead
        return -1.0 if overhead is None else self.nbytes / overhead if overhead else float("inf")


def lineage(facts: Lifetimes, candidate: GapCandidate, is_away: Callable[[TensorId, int], bool]
            ) -> tuple[set[int], set[TensorId]] | None:
    """Return the calls that replay a tensor at its back-access, and their source tensors; None if that cannot be.
    Also None for more than 50 calls, which are not worth it.
    ``is_away(tensor, call)``: True if the plan has evicted the tensor when the call runs."""
    calls: set[int] = set()
    sources: set[TensorId] = set()
    wanted = [candidate.tensor_id]
    back, made, freed, program = candidate.back, facts.made, facts.freed, facts.trace.calls
    while wanted:
        k = made[wanted.pop()]
        if k in calls:
            continue
        if k == BEFORE or len(calls) == MOST_CALLS or not program[k].replayable or facts.overwritten[k] <= back:
            return None
        calls.add(k)
        for source in facts.reads[k]:
            if source in sources:
                continue
            if made[source] < back <= freed[source] and not is_away(source, back):  # it is live
                sources.add(source)
            elif made[source] not in calls:
                wanted.append(source)
    return calls, sources


class Recomputation:
    """Capuchin's Algorithm 2: it chooses tensors to recompute among candidates, one at a time."""

    def __init__(self, facts: Lifetimes, seconds: Callable[[int], int], candidates: Iterable[GapCandidate],
                 is_away: Callable[[TensorId, int], bool], *, overwritten: bool = False) -> None:
        """Set rp_time and sources of the ``candidates``. seconds: a function, number of a call -> its nanoseconds.
        is_away(tensor, call): True if the tensor is evicted then. overwritten: set ext_time as listing line 31 does."""
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

    def _push(self, candidate: GapCandidate) -> None:
        if candidate.rp_time is not None:
            heapq.heappush(self._heap, (-candidate.msps, candidate.tensor_id))

    def best(self, wanted: Callable[[GapCandidate], bool]) -> GapCandidate | None:
        """Return the candidate with the largest MSPS (then the smallest id) for which ``wanted`` is true, or None.
        Candidates with a larger MSPS that are not wanted leave the heap."""
        while self._heap:
            msps, tensor_id = self._heap[0]
            candidate = self.candidates.get(tensor_id)
            if candidate is not None and -msps == candidate.msps and wanted(candidate):
                return candidate
            heapq.heappop(self._heap)
        return None

    def recompute(self, chosen: GapCandidate) -> None:
        """Choose a candidate for recomputation; tensors whose replay started from it now start from its sources."""
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

    def swap(self, chosen: GapCandidate, is_away: Callable[[int], bool]) -> None:
        """Remove from the candidates a tensor that will be swapped.
        is_away(call): True if it is off the device at that call."""
        del self.candidates[chosen.tensor_id]
        users = [self.candidates[u] for u in self._users.pop(chosen.tensor_id, ())]
        for user in users:
            user.sources.discard(chosen.tensor_id)
        self._start_from_sources(chosen, [user for user in users if is_away(user.back)])
        for source in chosen.sources:
            self._users[source].discard(chosen.tensor_id)

    def _start_from_sources(self, chosen: GapCandidate, users: Iterable[GapCandidate]) -> None:
        for user in users:
            if user.rp_time is None:
                continue
            if chosen.rp_time is None:
                user.rp_time = None  # its source is away and cannot be replayed
                continue
            user.rp_time += chosen.rp_time
            user.ext_ct = user.started.bit_count()
            for source in chosen.sources:
                user.sources.add(source)
                self._users[source].add(user.tensor_id)
            self._push(user)
