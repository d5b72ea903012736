"""The paper's policy: what it evicts, when it brings it back, and that indexing changes no plan.

Arithmetic in these tests: a mebibyte takes a millisecond each way, latency none. Times are in ms, sizes in MiB.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from networks import differences, train

from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.policy import Observation
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.planning.lifetimes import BEFORE, Lifetimes
from minidl.policies import POLICIES, create
from minidl.policies.capuchin.hybrid import EvictionPlanner
from minidl.policies.capuchin.link_time import LinkTime
from minidl.policies.capuchin.listing import Listing
from minidl.policies.capuchin.mem_saving import passive_bytes
from minidl.policies.capuchin.msps import MOST_CALLS, GapCandidate, Recomputation, lineage
from minidl.policies.capuchin.policy import Capuchin, CapuchinListing, CapuchinRecompute, CapuchinSwap
from minidl.policies.capuchin.readings import PRINTED, Readings

MIB = 1 << 20
MS = 1_000_000  # nanoseconds
COSTS = Costs(1e-3 / MIB, 1e-3 / MIB, 0.0)
OUT, DROP = Action.SWAP_OUT, Action.DROP


def call(inputs: Sequence[int], outputs: Sequence[int], ms: float, op: str = "f", **more) -> TraceCall:
    return TraceCall(op, tuple(inputs), tuple(outputs), ms / 1e3, more.pop("algorithms", ()), (), **more)


def trace(calls: Sequence[TraceCall], sizes: dict[int, float]) -> Trace:
    """With every tensor of positive id freed by its last use."""
    last = {t: k for k, c in enumerate(calls) for t in (*c.inputs, *c.outputs) if t >= 0}
    return Trace(
        tuple(TraceCall(c.op, c.inputs, c.outputs, c.seconds, c.algorithms,
                        tuple(t for t, at in last.items() if at == k), c.donated, c.may_donate, c.writes, c.replayable)
              for k, c in enumerate(calls)),
        {t: TraceTensor(t, int(size * MIB), t < 0) for t, size in sizes.items()})


def limits(mib: float) -> Limits:
    return Limits(int(mib * MIB), 1 << 40)


def there_and_back(gap: Sequence[float], size: float = 4, *, peak: float = 8) -> Trace:
    """Tensor 0 of ``size`` is made by a call of 1 ms, then small calls of these durations run, then 0 is used again.

    In the middle one of them tensor 1 of ``peak`` is live too.
    """
    calls = [call([], [0], 1, "make", replayable=False)]
    middle = len(gap) // 2
    for n, ms in enumerate(gap):
        calls.append(call([], [1] if n == middle else [10 + n], ms, replayable=False))
    calls.append(call([0], [2], 1, "use"))
    return trace(calls, {0: size, 1: peak, 2: 0.25, **{10 + n: 0.25 for n in range(len(gap)) if n != middle}})


# Lifetimes -----------------------------------------------------------------------------------------------------------
def test_live_bytes_count_a_donation_once_and_the_least_workspace():
    # -1: 1 MiB before the iteration. Call 0 makes 0 (2). Call 1 makes 1 (2) over 0. Call 2 makes 2 (4) from 1, with 3
    # or 5 MiB of workspace: 1 + 2, 1 + 2, 1 + 2 + 4 + 3.
    t = trace([call([-1], [0], 1), call([0], [1], 1, donated=((1, 0),)),
               call([1], [2], 1, algorithms=(Algorithm("a", 1e-3, 5 * MIB), Algorithm("b", 1e-3, 3 * MIB)))],
              {-1: 1, 0: 2, 1: 2, 2: 4})
    facts = Lifetimes.of(t)
    assert [n // MIB for n in facts.live_bytes] == [3, 3, 10]
    assert [t for t, made in facts.made.items() if made == BEFORE] == [-1] and facts.freed[-1] == 3
    assert facts.uses == {-1: [0], 0: [0, 1], 1: [1, 2], 2: [2]}
    assert facts.start_s == pytest.approx([0, 1e-3, 2e-3, 3e-3])


def test_an_input_that_was_written_over_for_want_of_memory_is_still_live():
    # Call 1 takes over 0's bytes, but call 2 reads 0 again: without pressure both are there, 2 + 2.
    t = trace([call([], [0], 1), call([0], [1], 1, donated=((1, 0),)), call([0, 1], [2], 1)], {0: 2, 1: 2, 2: 1})
    assert [n // MIB for n in Lifetimes.of(t).live_bytes] == [2, 4, 5]


def test_a_tensor_lives_from_the_call_after_it_is_made_to_the_one_that_frees_it():
    facts = Lifetimes.of(trace([call([], [0], 1), call([], [1], 1), call([0], [2], 1)], {0: 1, 1: 1, 2: 1}))
    assert [facts.live_at(0, k) for k in range(4)] == [False, True, True, False]
    assert facts.live_at(1, 1) is False  # made there, and gone there


# The link ------------------------------------------------------------------------------------------------------------
class PlainLink:
    """One direction of the link as plain lists: copies out use up a call from its beginning, copies in from its end."""

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = starts
        self.begin, self.end = list(starts[:-1]), list(starts[1:])

    def left_between(self, first: int, last: int) -> int:
        return sum(self.end[k] - self.begin[k] for k in range(first, last))

    def out_end(self, first: int, time: int, *, take: bool = False) -> int:
        for k in range(first, len(self.begin)):
            used = min(time, self.end[k] - self.begin[k])
            time -= used
            landed = self.begin[k] + used
            if take:
                self.begin[k] = landed
            if not time:
                return landed
        return self.starts[-1] + time

    def left_in(self, earliest: int, back: int) -> int:
        if earliest >= self.starts[back]:
            return self.starts[back] - earliest
        return sum(max(0, self.end[k] - max(self.begin[k], earliest)) for k in range(back))

    def take_in(self, earliest: int, back: int, time: int) -> int:
        """Returns when the copy starts: at the earliest if there is not time enough."""
        start = earliest
        for k in reversed(range(back)):
            used = min(time, max(0, self.end[k] - max(self.begin[k], earliest)))
            time -= used
            self.end[k] -= used
            start = self.end[k] if used else start
        return earliest if time else start


def test_the_link_agrees_with_two_lists_of_what_is_left_of_each_call():
    rng = random.Random(2)
    for calls in (1, 2, 5, 16, 17):
        starts = [0]
        for _ in range(calls):
            starts.append(starts[-1] + rng.choice([0, 3, 5, 8]))
        out, inward = LinkTime(np.array(starts)), LinkTime(np.array(starts))
        plain_out, plain_in = PlainLink(starts), PlainLink(starts)
        for _ in range(20):
            first, time = rng.randrange(calls), rng.randrange(1, 12)
            end = int(out.out_end(np.array([first]), np.array([time]))[0])
            assert end == plain_out.out_end(first, time)
            out.take_out(first, end)
            plain_out.out_end(first, time, take=True)
            assert out.left.tolist() == [e - b for b, e in zip(plain_out.begin, plain_out.end, strict=True)]
            earliest, back, time = rng.randrange(starts[-1] + 4), rng.randrange(1, calls + 1), rng.randrange(1, 12)
            ask = np.array([earliest]), np.array([back])
            assert int(inward.left_in(*ask)[0]) == plain_in.left_in(earliest, back)
            inward.take_in(int(inward.in_start(*ask, np.array([time]))[0]), back)
            plain_in.take_in(earliest, back, time)
            assert inward.left.tolist() == [e - b for b, e in zip(plain_in.begin, plain_in.end, strict=True)]


# Choosing swaps ------------------------------------------------------------------------------------------------------
def test_a_plan_for_what_fits_is_the_empty_one():  # 4 + 8 live
    assert Capuchin().plan(there_and_back([5, 5, 5]), COSTS, limits(12)).plan == Plan()


def test_swap_is_free_when_the_gap_is_wider_than_two_copies():
    # 4 MiB: 4 ms each way. Made at 0, landed at 4, the peak is from 5 to 10; wanted at 14.
    plan = Capuchin().plan(there_and_back([4, 5, 4]), COSTS, limits(11)).plan
    assert plan.evictions == {(0, 1): OUT} and plan.predicted_seconds == pytest.approx(15e-3)


def test_a_swap_that_does_not_fit_its_gap_is_charged_what_sticks_out():
    # 4 ms each way. Made from 0 to 1, the peak is from 2 to 5, wanted at 6: 1 ms is hidden on the way out, 1 ms back.
    plan = Capuchin().plan(there_and_back([1, 3, 1]), COSTS, limits(11)).plan
    assert plan.evictions == {(0, 1): OUT} and plan.predicted_seconds == pytest.approx(7e-3 + 3e-3 + 3e-3)
    # If memory counts as free at once, only what FT lacks is: 8 of 6 ms.
    free_at_once = Readings(landed=False, after_call=False)
    plan = Capuchin(readings=free_at_once).plan(there_and_back([1, 3, 1]), COSTS, limits(11)).plan
    assert plan.evictions == {(0, 1): OUT} and plan.predicted_seconds == pytest.approx(7e-3 + 2e-3)


def nested(sizes: Sequence[float], ms: float, *, peak: float = 1) -> Trace:
    """Tensors made one after the other, then one call of ``peak``, then each used once more, the last made first."""
    n = len(sizes)
    calls = [call([], [i], ms, replayable=False) for i in range(n)]
    calls.append(call([], [100], ms, replayable=False))
    calls += [call([i], [200 + i], ms, replayable=False) for i in reversed(range(n))]
    return trace(calls, {100: peak, **dict(enumerate(sizes)), **{200 + i: 0.25 for i in range(n)}})


def test_the_longest_free_time_goes_first_until_the_peak_is_gone():
    # Gaps of 6, 4 and 2 calls of 10 ms; FT of equal tensors in that order. 3 x 2 + 1 live at the peak: one saved is 5.
    for budget, expected in ((6.5, {0}), (5, {0}), (4.9, {0, 1}), (3, {0, 1}), (2.9, {0, 1, 2})):
        plan = CapuchinSwap().plan(nested([2, 2, 2], 10), COSTS, limits(budget)).plan
        assert {t for t, _ in plan.evictions} == expected, budget


def test_what_does_not_meet_the_peak_is_no_candidate():
    # 0 is wide but lies before the peak in time; 1 is live during it.
    t = trace([call([], [0], 50), call([], [5], 50), call([0], [1], 50), call([], [2], 50), call([1], [3], 50)],
              {0: 2, 5: 0.25, 1: 2, 2: 8, 3: 0.25})
    assert CapuchinSwap().plan(t, COSTS, limits(9)).plan.evictions == {(1, 1): OUT}


def test_persistent_tensors_stay():
    t = trace([call([-1], [0], 50), call([], [1], 50, replayable=False), call([-1, 0], [2], 50)],
              {-1: 8, 0: 1, 1: 8, 2: 0.25})
    assert {tensor for tensor, _ in Capuchin().plan(t, COSTS, limits(9)).plan.evictions} == {0}


def test_of_several_gaps_the_widest_that_meets_the_peak_is_taken():
    # 0 is used at 0, 1, 3 and 9; the peak (1 beside it) is at call 2, which only the second gap meets.
    t = trace([call([], [0], 1), call([0], [10], 1), call([], [1], 20), call([0], [11], 1),
               *[call([], [20 + n], 20) for n in range(5)], call([0], [2], 1)],
              {0: 4, 1: 8, 2: 0.25, 10: 0.25, 11: 0.25, **{20 + n: 0.25 for n in range(5)}})
    assert CapuchinSwap().plan(t, COSTS, limits(10)).plan.evictions == {(0, 2): OUT}


# In-triggers ---------------------------------------------------------------------------------------------------------
def test_the_in_trigger_is_the_latest_access_before_swap_in_start():
    # Calls start at 0 1 4 7 10 13 16; 0 (4 ms) is wanted at 16, so SwapInStart is 12: the access of call 4, at 10.
    plan = CapuchinSwap().plan(there_and_back([3, 3, 3, 3, 3]), COSTS, limits(11)).plan
    assert plan.prefetches == {(13, 1): (0,)}


def test_an_access_exactly_at_swap_in_start_is_too_late():
    # Wanted at 17: SwapInStart is 13, where call 5 starts; the access before it is call 4's, at 10.
    plan = CapuchinSwap().plan(there_and_back([3, 3, 3, 3, 4]), COSTS, limits(11)).plan
    assert plan.prefetches == {(13, 1): (0,)}


def test_an_in_trigger_inside_the_peak_moves_to_the_first_access_after_it():
    # Starts 0 1 4 7 8 9 10: SwapInStart 6 is in call 2 (from 4 on), before the peak's end (call 3): so call 4.
    plan = CapuchinSwap().plan(there_and_back([3, 3, 1, 1, 1]), COSTS, limits(11)).plan
    assert plan.prefetches == {(13, 1): (0,)}


def test_where_the_peak_lasts_until_the_back_access_that_triggers():
    assert CapuchinSwap().plan(there_and_back([9]), COSTS, limits(11)).plan.prefetches == {}


def test_the_in_trigger_is_after_the_evicted_access():
    # SwapInStart is 6 - 4 = 2, in call 0, which makes the tensor; the peak is only at call 1 (1..2), the rest is free.
    t = trace([call([], [0], 3), call([], [1], 1), call([], [3], 1), call([], [4], 1), call([0], [2], 1)],
              {0: 4, 1: 8, 2: 0.25, 3: 0.25, 4: 0.25})
    assert CapuchinSwap().plan(t, COSTS, limits(11)).plan.prefetches == {(3, 1): (0,)}


def queued(size: float) -> Proposal:
    t = trace([call([], [0], 10), call([], [1], 10), call([], [2], 10),
               *[call([], [10 + n], 10) for n in range(5)], call([1], [3], 10), call([0], [4], 10)],
              {0: size, 1: size, 2: 40, 3: 0.25, 4: 0.25, **{10 + n: 0.25 for n in range(5)}})
    return CapuchinSwap().plan(t, COSTS, limits(41))


def test_swap_ins_queue_so_that_earlier_ones_start_earlier():
    # Calls of 10 ms; 0 and 1 are evicted after calls 0 and 1 and wanted at 90 and 80. Copies of 12 ms: 0 starts at 78,
    # 1 has to end by then and starts at 66: the accesses at 70 and 60. Copies of 15 ms: at 75 and 60, the accesses at
    # 70 and 50; alone 1 would have started at 65, with the access at 60.
    assert queued(12).plan.prefetches == {(13, 1): (1,), (14, 1): (0,)}
    assert queued(15).plan.prefetches == {(12, 1): (1,), (14, 1): (0,)}


def test_room_for_a_prefetch_is_judged_with_the_others_on_the_planned_profile():
    # Two tensors of 4; from call 3 on there is room for 4 beside the 5 of call 6, not for 8: 1, wanted first, comes
    # back early; 0 would start in call 6 (wanted 71, copy 4), but must wait until that has gone.
    t = trace([call([], [0], 10), call([], [1], 10), call([], [2], 10), call([], [10], 10), call([], [11], 10),
               call([1], [3], 10), call([1], [12], 10), call([], [13], 1), call([0], [4], 10)],
              {0: 4, 1: 4, 2: 9, 3: 0.25, 10: 0.25, 11: 0.25, 12: 5, 13: 0.25, 4: 0.25})
    plan = CapuchinSwap().plan(t, COSTS, limits(10)).plan
    assert plan.evictions == {(0, 1): OUT, (1, 1): OUT}
    assert plan.prefetches == {(11, 1): (1,), (13, 1): (0,)}


# Recomputation -------------------------------------------------------------------------------------------------------
def chain(ms: Sequence[float] = (1, 1, 1, 1)) -> Trace:
    """T1 -> T2 -> T3 -> T4 of 1 MiB (ids 1 to 4, T1 from a leaf), a peak, then T4, T2 and T1 are used; T3 is dead."""
    return trace([call([-1], [1], ms[0]), call([1], [2], ms[1]), call([2], [3], ms[2]), call([3], [4], ms[3]),
                  call([], [9], 1, replayable=False), call([4], [10], 1), call([2], [11], 1), call([1], [12], 1)],
                 {-1: 1, 1: 1, 2: 1, 3: 1, 4: 1, 9: 8, 10: 0.25, 11: 0.25, 12: 0.25})


def candidates(ids: Sequence[int], t: Trace) -> list[GapCandidate]:
    facts = Lifetimes.of(t)
    return [GapCandidate(i, facts.nbytes[i], facts.uses[i][-2], facts.uses[i][-1]) for i in ids]


def recomputation(ids: Sequence[int], t: Trace) -> Recomputation:
    return Recomputation(Lifetimes.of(t), lambda k: round(t.calls[k].seconds * 1e9), candidates(ids, t),
                         lambda tensor_id, at: False)


def test_recomputation_goes_through_dead_tensors_to_live_ones():
    # T3 is dead at T4's back-access: calls 2 and 3, from T2.
    one = candidates([4], chain())[0]
    assert lineage(Lifetimes.of(chain()), one, lambda tensor_id, at: False) == ({2, 3}, {2})
    # If T2 is away by then, T1 is the source.
    assert lineage(Lifetimes.of(chain()), one, lambda tensor_id, at: tensor_id == 2) == ({1, 2, 3}, {1})


def test_choosing_a_source_rewrites_those_that_start_from_it():
    # Times 1, 2, 4, 8. At first T4 = 4 + 8 from T2, T2 = 2 from T1, T1 = 1.
    r = recomputation([1, 2, 4], chain([1, 2, 4, 8]))
    t1, t2, t4 = (r.candidates[i] for i in (1, 2, 4))
    assert (t1.overhead, t2.overhead, t4.overhead) == (1 * MS, 2 * MS, 12 * MS)
    assert (t2.sources, t4.sources) == ({1}, {2})
    r.recompute(t2)  # T4 now starts from T1 and takes 14; dropping T1 too would be paid for T1 and for T2
    assert t4.sources == {1} and t4.overhead == 14 * MS
    assert t1.overhead == (1 + 1) * MS
    r.recompute(t4)  # a third replay starts from T1
    assert t1.overhead == (1 + 2) * MS and r.best(lambda c: True) is t1


def test_dropping_a_target_first_makes_its_source_dearer():
    r = recomputation([1, 2, 4], chain([1, 2, 4, 8]))
    t1, t2, t4 = (r.candidates[i] for i in (1, 2, 4))
    r.recompute(t4)  # T4 starts from T2: dropping T2 costs its 2 ms twice; T1 is not concerned
    assert t2.overhead == 4 * MS and t1.overhead == 1 * MS
    r.recompute(t2)  # both start from T1 now
    assert t1.overhead == 3 * MS


def test_swapping_a_source_rewrites_only_those_that_want_it_while_it_is_away():
    for away, expected in ((True, 14), (False, 12)):
        r = recomputation([1, 2, 4], chain([1, 2, 4, 8]))
        t2, t4 = r.candidates[2], r.candidates[4]
        r.swap(t2, lambda back, away=away: away)
        assert t4.overhead == expected * MS and t4.sources == ({1} if away else set())
        assert r.candidates[1].overhead == 1 * MS  # nobody is recomputed from it yet


def test_what_cannot_be_replayed_is_not_dropped():
    for t in (trace([call([-1], [0], 9, replayable=False), call([], [1], 50, replayable=False), call([0], [2], 1)],
                    {-1: 1, 0: 4, 1: 8, 2: 0.25}),
              # ... nor where a source was written after it had been read, or the value itself was
              trace([call([-1], [0], 9), call([], [1], 50, replayable=False), call([-1], [], 1, "g_", writes=(-1,)),
                     call([0], [2], 1)], {-1: 1, 0: 4, 1: 8, 2: 0.25})):
        assert CapuchinRecompute().plan(t, COSTS, limits(10)).plan.evictions == {}
        assert CapuchinSwap().plan(t, COSTS, limits(10)).plan.evictions == {(0, 1): OUT}


def test_a_source_that_is_written_after_the_back_access_does_no_harm():
    t = trace([call([-1], [0], 9), call([], [1], 50, replayable=False), call([0], [2], 1),
               call([-1], [], 1, "g_", writes=(-1,))], {-1: 1, 0: 4, 1: 8, 2: 0.25})
    assert CapuchinRecompute().plan(t, COSTS, limits(10)).plan.evictions == {(0, 1): DROP}


def test_a_lineage_of_too_many_calls_is_not_weighed():
    def plan(length: int) -> Plan:
        n = length
        t = trace([call([-1], [0], 1), *[call([i], [i + 1], 1) for i in range(n - 1)],
                   call([], [900], 1, replayable=False), call([n - 1], [901], 1)],
                  {-1: 1, 900: 8, 901: 0.25, **dict.fromkeys(range(n), 1)})
        return CapuchinRecompute().plan(t, COSTS, limits(9)).plan

    assert plan(MOST_CALLS).evictions == {(MOST_CALLS - 1, 1): DROP}
    assert plan(MOST_CALLS + 1).evictions == {}


def test_recompute_only_takes_the_most_memory_a_second():
    # 0 takes 8 ms for 4 MiB, 1 takes 1 ms for 1 MiB: 1 goes first, though 0 is bigger; then both.
    t = trace([call([-1], [0], 8), call([-1], [1], 1), call([], [2], 1, replayable=False), call([1], [3], 1),
               call([0], [4], 1)], {-1: 1, 0: 4, 1: 1, 2: 8, 3: 0.25, 4: 0.25})
    assert CapuchinRecompute().plan(t, COSTS, limits(13)).plan.evictions == {(1, 1): DROP}
    plan = CapuchinRecompute().plan(t, COSTS, limits(12)).plan
    assert plan.evictions == {(1, 1): DROP, (0, 1): DROP} and plan.prefetches == {}
    assert plan.predicted_seconds == pytest.approx(12e-3 + 9e-3)


# Hybrid --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("make_ms", "expected"), [(7, DROP), (9, OUT)])
def test_the_cheaper_of_swapping_and_recomputing_is_taken(make_ms, expected):
    # 4 ms each way, of which the peak, which fills the gap, hides nothing: 8.
    t = trace([call([-1], [0], make_ms), call([], [1], 5, replayable=False), call([0], [2], 1)],
              {-1: 1, 0: 4, 1: 8, 2: 0.25})
    assert Capuchin().plan(t, COSTS, limits(10)).plan.evictions == {(0, 1): expected}


def test_the_text_prefers_the_cheapest_choice_and_the_listing_the_widest_gap():
    # None can be hidden. 0 (6 MiB) is made by 11, the peak is from 12 to 15, wanted at 16: swap 5 + 5, recompute 11. 1
    # (4 MiB) is made by 12 and wanted at 15: recompute 1. One of them is enough. By the text the cheapest of all is 1's
    # recomputation; by the listing 0 comes first, for its FT is 4 instead of -4.
    t = trace([call([-1], [0], 11), call([-1], [1], 1), call([], [2], 3, replayable=False), call([1], [3], 1),
               call([0], [4], 1)], {-1: 1, 0: 6, 1: 4, 2: 8, 3: 0.25, 4: 0.25})
    assert Capuchin().plan(t, COSTS, limits(15)).plan.evictions == {(1, 1): DROP}
    assert Capuchin(readings=Readings(listing=True)).plan(t, COSTS, limits(15)).plan.evictions == {(0, 1): OUT}


def test_the_link_is_shared_so_the_second_tensor_is_no_longer_free():
    # Calls of 1 ms: made in 0 and 1, the peak 10..11, wanted at 19 and 18. 4 ms each way: out 1..5 and 5..9, in
    # 15..19 and 11..15: both are hidden. 5 ms: out 1..6 and 6..11, in 14..19 and 9..14: 1 ms too late, 2 too early.
    def choice(size: float) -> EvictionPlanner:
        t = trace([call([], [0], 1), call([], [1], 1), *[call([], [10 + n], 1) for n in range(8)], call([], [2], 1),
                   *[call([], [20 + n], 1) for n in range(7)], call([1], [3], 1), call([0], [4], 1)],
                  {0: size, 1: size, 2: 40, 3: 0.25, 4: 0.25, **{10 + n: 0.25 for n in range(17)}})
        made = EvictionPlanner(Lifetimes.of(t), COSTS, 41 * MIB)
        made.swap_what_can_be_hidden()
        return made

    assert list(choice(4).swapped) == [0, 1]
    five = choice(5)
    assert list(five.swapped) == [0] and five.swap_overhead(five.candidates[1]) == 3 * MS


def test_a_swapped_source_is_back_when_a_replay_reads_it():
    # 1 = f(0); both wanted after the peak, 1 first. 0 can be hidden; 1 is dropped, and its replay at 43 finds 0 on the
    # host, which is wanted itself only at 72. Copy 10 ms: in-trigger before 33 instead of before 62.
    t = trace([call([-1], [0], 1), call([0], [1], 1), call([], [20], 10), call([], [2], 30, replayable=False),
               *[call([], [10 + n], 0.25, replayable=False) for n in range(4)],
               call([1], [3], 29), call([0], [4], 1)],
              {-1: 1, 0: 10, 1: 20, 2: 40, 3: 0.25, 4: 0.25, 20: 0.25, **{10 + n: 0.25 for n in range(4)}})
    proposal = Capuchin().plan(t, COSTS, limits(42))
    assert proposal.plan.evictions == {(0, 2): OUT, (1, 1): DROP}
    assert [swap.back for swap in proposal.notes.timetable.swap_ins] == [8]
    assert proposal.plan.prefetches == {(10, 1): (0,)}  # the first access after the peak


# Feedback and options ------------------------------------------------------------------------------------------------
def seen(late: dict[int, float], seconds: float = 1.0) -> Observation:
    return Observation(Trace((), {}), Costs(0.0, 0.0, 0.0), Limits(0, 0), seconds, 0.0, late, 0)


def test_a_late_tensor_starts_five_percent_of_its_swap_time_earlier_each_time():
    # Calls of 0.5 ms; 0 (20 ms) is wanted at 100.5: SwapInStart 80.5, the access at 80. Each time 1 ms earlier.
    policy = CapuchinSwap()
    proposal = policy.plan(there_and_back([50, *[0.5] * 99], 20, peak=30), COSTS, limits(31))
    starts = []
    for _ in range(4):
        key, = proposal.plan.prefetches
        timetable = proposal.notes.timetable
        starts.append(timetable.starts[timetable.triggers.index(key)] / MS)
        proposal = policy.feedback(proposal, seen({0: 1e-3}))
    assert starts == [80, 79, 78, 77]
    assert proposal.notes.moved == {0: 4 * MS}


def test_each_tensor_keeps_the_shift_that_feedback_gave_it():  # 5% of 12 ms is 0.6 ms
    policy = CapuchinSwap()
    both = policy.feedback(policy.feedback(queued(12), seen({0: 1.0})), seen({1: 1.0, 0: 1e-9}))
    assert both.notes.moved == {0: 600_000, 1: 600_000}


def test_a_swap_in_that_is_moved_moves_those_before_it_on_the_link():
    # 0 starts at 78 and 1 at 66 (above). Twelve times late, 0 starts 7.2 ms earlier, still after the access at 70 (call
    # 14); 1 has to end before that and starts at 58.8: the access at 50 instead of the one at 60.
    policy, proposal = CapuchinSwap(), queued(12)
    for _ in range(12):
        proposal = policy.feedback(proposal, seen({0: 1.0}))
    assert proposal.notes.moved == {0: 7_200_000}
    assert proposal.plan.prefetches == {(12, 1): (1,), (14, 1): (0,)}


def test_feedback_without_anything_late_is_the_same_plan():
    policy = CapuchinSwap()
    proposal = policy.plan(there_and_back([3, 3, 3, 3, 3]), COSTS, limits(11))
    assert policy.feedback(proposal, seen({})) is proposal
    assert policy.feedback(proposal, seen({0: 1e-7, 77: 1.0})) is proposal
    assert policy.feedback(NO_PLAN, seen({0: 1.0})) is NO_PLAN


def test_feedback_settles_where_the_tensor_cannot_come_earlier():
    # Calls of 1 ms, the peak is call 11; 0 (4 ms) is wanted at 22: SwapInStart 18, the access at 17. 5% is 0.2 ms:
    # after 25 iterations it is 13, and the access before that, at 12, is the first after the peak.
    policy = CapuchinSwap()
    proposal = policy.plan(there_and_back([1] * 21), COSTS, limits(11))
    assert proposal.plan.prefetches == {(26, 1): (0,)}
    for _ in range(25):
        proposal, before = policy.feedback(proposal, seen({0: 1.0})), proposal
        assert proposal is not before
    assert policy.feedback(proposal, seen({0: 1.0})) is proposal and proposal.plan.prefetches == {(21, 1): (0,)}


def test_feedback_ends_with_the_fastest_plan_when_a_correction_makes_an_iteration_slower():
    policy = CapuchinSwap()
    first = policy.plan(there_and_back([1] * 21), COSTS, limits(11))
    second = policy.feedback(first, seen({0: 1e-3}, 1.0))
    third = policy.feedback(second, seen({0: 1e-3}, 0.9))
    best = third.notes.best.notes
    assert best.moved == second.notes.moved != third.notes.moved and best.best is None
    assert policy.feedback(third, seen({0: 1e-3}, 0.91)).notes.moved != third.notes.moved  # within what chance does
    ended = policy.feedback(third, seen({0: 1e-3}, 1.0))
    assert ended.notes.moved == second.notes.moved and ended.plan == second.plan
    assert policy.feedback(ended, seen({0: 1e-3}, 0.5)) is ended
    # What is slower without a correction is not its fault.
    assert policy.feedback(first, seen({}, 5.0)) is first


def test_feedback_ends_with_the_fastest_plan_when_five_corrections_in_a_row_gain_nothing():
    policy = CapuchinSwap()
    first = policy.plan(there_and_back([1] * 21), COSTS, limits(11))
    second = proposal = policy.feedback(first, seen({0: 1e-3}, 1.0))
    proposal = policy.feedback(second, seen({0: 1e-3}, 0.9))
    for seconds in (0.91, 0.92, 0.91, 0.95):
        proposal = policy.feedback(proposal, seen({0: 1e-3}, seconds))
        assert not proposal.notes.final
    # One more ends it; as does what nothing is late of any more; but one that is faster begins anew.
    for late, seconds in (({0: 1e-3}, 0.91), ({}, 0.91)):
        ended = policy.feedback(proposal, seen(late, seconds))
        assert ended.notes.final and ended.plan == second.plan
    assert policy.feedback(proposal, seen({0: 1e-3}, 0.89)).notes.slower == 0


def test_the_three_policies_can_be_asked_for_by_name():
    assert all(create(name).name == name and create(name).plans and name in POLICIES
               for name in ("capuchin", "capuchin-swap", "capuchin-recompute"))


# The same plan as a naive listing ------------------------------------------------------------------------------------
def random_trace(rng: random.Random, calls: int) -> Trace:
    """Chains with skips and joins, used again in about the reverse order; some calls write, donate or are not pure."""
    forward: list[TraceCall] = []
    sizes: dict[int, float] = {-1: 1, -2: 2}
    fresh = 0
    for _ in range(calls // 2):
        inputs = rng.sample(range(max(0, fresh - 5), fresh), min(fresh, rng.choice([0, 1, 1, 1, 2]))) or [-1]
        outputs = list(range(fresh, fresh + rng.choice([1, 1, 1, 2])))
        fresh += len(outputs)
        sizes |= {o: rng.choice([0.25, 1, 1, 2, 4]) for o in outputs}
        forward.append(call(inputs, outputs, rng.choice([0, 0.5, 1, 1, 2, 4]), rng.choice("abc"),
                            replayable=rng.random() < 0.9))
    backward: list[TraceCall] = []
    for made in reversed(forward):
        wanted = [t for t in (*made.inputs, *made.outputs) if rng.random() < 0.6]
        written = [-2] if rng.random() < 0.02 else []
        sizes[fresh] = rng.choice([0.25, 1, 2])
        inputs = [*wanted, *([fresh - 1] if rng.random() < 0.7 else []), *written]
        backward.append(call(list(dict.fromkeys(inputs)), [fresh], rng.choice([0, 1, 2, 3]), rng.choice("def"),
                             replayable=not written, writes=tuple(written)))
        fresh += 1
    return trace([*forward, *backward], sizes)


class Naive:
    """The text of section 4.5 without an index: every step looks at every candidate, call and choice."""

    def __init__(self, t: Trace, costs: Costs, budget: int) -> None:
        self.facts = facts = Lifetimes.of(t)
        self.budget = budget
        self.starts = [round(s * 1e9) for s in facts.start_s]
        self.profile = list(facts.live_bytes)
        self.apart = list(facts.live_bytes)
        self.out, self.inward = PlainLink(self.starts), PlainLink(self.starts)
        self.swapped: dict[int, GapCandidate] = {}
        self.recomps: dict[int, GapCandidate] = {}
        pairs = []
        for tensor_id, calls in facts.uses.items():
            time = round(facts.nbytes[tensor_id] * costs.out_seconds_per_byte * 1e9)
            for n in range(len(calls) - 1):
                if not t.tensors[tensor_id].persistent and self.meets_peak(calls[n], calls[n + 1]):
                    ft = self.starts[calls[n + 1]] - self.starts[calls[n]] - 2 * time
                    pairs.append(GapCandidate(tensor_id, facts.nbytes[tensor_id], calls[n], calls[n + 1], n + 1, ft,
                                              time,
                                           time))
        pairs.sort(key=lambda c: (-c.free_time, c.tensor_id, c.count))
        self.candidates: dict[int, GapCandidate] = {}
        for pair in pairs:
            self.candidates.setdefault(pair.tensor_id, pair)
        self.ext: dict[int, int] = {}

    def meets_peak(self, evict: int, back: int) -> bool:
        return any(self.profile[k] > self.budget for k in range(evict + 1, back))

    def away(self, tensor_id: int, at: int) -> bool:
        s = self.swapped.get(tensor_id)
        return s is not None and s.evict < at and self.starts[at] < self.starts[s.back] - s.swap_in

    def times(self, c: GapCandidate) -> tuple[int, int, int, int, int]:
        """Exposed time out and in, when the copy out has landed, the earliest time to come back, the call that misses
        the memory."""
        due = next(k for k in range(c.evict + 1, c.back) if self.profile[k] > self.budget)
        room = self.out.left_between(c.evict + 1, due)
        landed = min(self.starts[due], self.out.out_end(c.evict + 1, c.swap_out))
        earliest = max(landed, self.starts[due + 1])
        return (max(0, c.swap_out - room), max(0, c.swap_in - self.inward.left_in(earliest, c.back)), landed, earliest,
                due)

    def exposed(self, c: GapCandidate) -> int:
        return sum(self.times(c)[:2])

    def over(self) -> bool:
        return max(self.profile) > self.budget

    def take(self, c: GapCandidate, first: int, last: int) -> None:
        del self.candidates[c.tensor_id]
        for k in range(first, last + 1):
            self.profile[k] -= c.nbytes
        for k in range(first, c.back):
            self.apart[k] -= c.nbytes

    def swap(self, c: GapCandidate) -> None:
        out, _, landed, earliest, due = self.times(c)
        if c.swap_out > out:
            self.out.out_end(c.evict + 1, c.swap_out - out, take=True)
        start = self.inward.take_in(earliest, c.back, c.swap_in)
        self.swapped[c.tensor_id] = c
        first = min(k for k in range(c.evict + 1, c.back + 1) if self.starts[k] >= landed)
        in_trigger = max((k for k in range(c.back) if self.starts[k] < start), default=0)
        self.take(c, first, max(due, in_trigger - 1))
        for other in self.candidates.values():
            if c.tensor_id in other.sources:
                other.sources = other.sources - {c.tensor_id}
                if self.away(c.tensor_id, other.back):
                    self.go_through(other, c)

    def go_through(self, other: GapCandidate, c: GapCandidate) -> None:
        if other.rp_time is None or c.rp_time is None:
            other.rp_time = None
        else:
            other.sources = other.sources | c.sources
            other.rp_time += c.rp_time

    def weigh(self) -> None:
        for c in self.candidates.values():
            found = lineage(self.facts, c, self.away)
            if found is not None:
                c.rp_time = sum(self.starts[k + 1] - self.starts[k] for k in found[0])
                c.sources = {s for s in found[1] if s in self.candidates}
        self.ext = dict.fromkeys(self.candidates, 0)

    def cost(self, c: GapCandidate) -> int:
        return (c.rp_time or 0) + self.ext[c.tensor_id]

    def msps(self, c: GapCandidate) -> float:
        return c.nbytes / self.cost(c) if self.cost(c) else float("inf")

    def recompute(self, c: GapCandidate) -> None:  # Algorithm 2, lines 5 to 34
        for rp in self.recomps.values():
            if c.tensor_id in rp.sources:
                rp.sources = rp.sources - {c.tensor_id} | c.sources
        self.recomps[c.tensor_id] = c
        self.take(c, c.evict + 1, c.back - 1)
        for other in self.candidates.values():
            if c.tensor_id in other.sources:
                other.sources = other.sources - {c.tensor_id}
                self.go_through(other, c)
            self.ext[other.tensor_id] = sum(other.rp_time or 0 for rp in self.recomps.values()
                                            if other.tensor_id in rp.sources)

    def run(self, *, swap: bool, recompute: bool) -> None:
        hiding = swap
        while self.over():
            left = [c for c in self.candidates.values() if self.meets_peak(c.evict, c.back)]
            out = min(left, key=lambda c: self.exposed(c) / c.nbytes, default=None) if swap else None
            if hiding and out is not None and not self.exposed(out):
                self.swap(out)
                continue
            if hiding or not self.ext:
                hiding = False
                if recompute:
                    self.weigh()
            drops = [c for c in left if recompute and c.rp_time is not None]
            drop = min(drops, key=lambda c: (-self.msps(c), c.tensor_id), default=None)
            if drop is not None and (out is None or self.cost(drop) * out.nbytes <= self.exposed(out) * drop.nbytes):
                self.recompute(drop)
            elif out is not None:
                self.swap(out)
            else:
                return

    def evictions(self) -> dict[tuple[int, int], Action]:
        return ({(c.tensor_id, c.count): OUT for c in self.swapped.values()}
                | {(c.tensor_id, c.count): DROP for c in self.recomps.values()})

    def prefetches(self) -> dict[tuple[int, int], tuple[int, ...]]:
        wanted = {t: c.back for t, c in self.swapped.items()}
        for drop in self.recomps.values():
            found = lineage(self.facts, drop, lambda t, at: t in self.recomps
                            and self.recomps[t].evict < at < self.recomps[t].back)
            for source in found[1] if found else ():
                if source in self.swapped and self.swapped[source].evict < drop.back:
                    wanted[source] = min(wanted[source], drop.back)
        order = sorted(self.swapped.values(), key=lambda c: (wanted[c.tensor_id], c.tensor_id))
        for c in order:
            for k in range(wanted[c.tensor_id], c.back):
                self.apart[k] += c.nbytes
        begin, next_start = {}, self.starts[-1]
        for c in reversed(order):
            next_start = begin[c.tensor_id] = min(next_start, self.starts[wanted[c.tensor_id]]) - c.swap_in
        last = {a.call: (a.tensor_id, a.access_count) for a in self.facts.trace.accesses}
        chosen: dict[tuple[int, int], tuple[int, ...]] = {}
        for c in order:
            back = wanted[c.tensor_id]
            fits = [k for k in range(c.evict + 1, back)
                    if all(self.apart[q] + c.nbytes <= self.budget for q in range(k, back))]
            if fits:
                at = max([k for k in fits if self.starts[k] < begin[c.tensor_id]], default=fits[0])
                chosen[last[at]] = (*chosen.get(last[at], ()), c.tensor_id)
                for k in range(at, back):
                    self.apart[k] += c.nbytes
        return chosen


def random_cases(count: int) -> Iterator[tuple[Trace, Costs, Limits]]:
    rng = random.Random(4)
    for _ in range(count):
        t = random_trace(rng, rng.choice([10, 20, 40, 80]))
        costs = Costs(*[rng.choice([0.1, 1.0, 6.0]) * 1e-3 / MIB] * 2, 0.0)
        yield t, costs, Limits(int(rng.uniform(0.3, 1.0) * max(Lifetimes.of(t).live_bytes)), 1 << 40)


@pytest.mark.default(swap=[True], recompute=[True])
@pytest.mark.parametrize(("swap", "recompute"), [(True, True), (True, False), (False, True)])
def test_the_plan_is_that_of_the_naive_listing(swap, recompute):
    kinds = {OUT: 0, DROP: 0}
    triggers = 0
    for n, (t, costs, limit) in enumerate(random_cases(100)):
        naive = Naive(t, costs, limit.device_bytes)
        naive.run(swap=swap, recompute=recompute)
        plan = Capuchin(swap=swap, recompute=recompute).plan(t, costs, limit).plan
        assert plan.evictions == naive.evictions(), n
        assert plan.prefetches == naive.prefetches(), n
        for action in plan.evictions.values():
            kinds[action] += 1
        triggers += sum(map(len, plan.prefetches.values()))
    assert (kinds[OUT] > 200) is swap and (kinds[DROP] > 100) is recompute and (triggers > 100) is swap


# As printed ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("counted", [False, True])
def test_with_every_reading_as_printed_the_plan_is_that_of_the_listing(counted):
    kinds, triggers, differ = {OUT: 0, DROP: 0}, 0, 0
    for n, (t, costs, limit) in enumerate(random_cases(60)):
        printed = replace(PRINTED, overwritten=not counted)
        listing = CapuchinListing(counted=counted).plan(t, costs, limit).plan
        plan = Capuchin(readings=printed).plan(t, costs, limit).plan
        assert plan.evictions == listing.evictions and plan.prefetches == listing.prefetches, n
        for action in listing.evictions.values():
            kinds[action] += 1
        triggers += sum(map(len, listing.prefetches.values()))
        # Algorithm 2 alone
        alone = Listing(t, costs, limit.device_bytes, counted=counted)
        alone.algorithm_2()
        plan = CapuchinRecompute(readings=replace(printed, listing=False)).plan(t, costs, limit).plan
        assert plan.evictions == {(c.id, c.count): DROP for c in alone.recomps}, n
        other = Listing(t, costs, limit.device_bytes, counted=not counted)
        other.algorithm_2()
        differ += {c.id for c in other.recomps} != {c.id for c in alone.recomps}
    assert kinds[OUT] > 150 and kinds[DROP] > 80 and triggers > 100 and differ


def test_line_31_forgets_what_lines_22_to_27_would_count():
    # T1 -> T2 and T1 -> T3, T1 in 1 ms. T2 and T3 are chosen: T1 would be made three times in all, not twice.
    t = trace([call([-1], [1], 1), call([1], [2], 2), call([1], [3], 2), call([], [9], 1, replayable=False),
               call([3], [4], 1), call([2], [5], 1), call([1], [6], 1)], {-1: 1, 9: 8, **dict.fromkeys(range(1, 7), 1)})
    for counted, ext_time in ((False, 1 * MS), (True, 2 * MS)):
        made = Listing(t, COSTS, 10 * MIB, counted=counted)
        one, two, three = sorted(made.candidates, key=lambda c: c.id)
        made.recompute(two)
        assert one.ext_time == 1 * MS
        made.recompute(three)
        assert one.ext_time == ext_time


def test_mem_saving_is_what_passive_mode_evicts():
    # 2 MiB each of 0, 1 and 2, then 4 of 3 in 6: two have to leave, from the front 0 and 1, and none for their return.
    t = trace([call([], [0], 1), call([], [1], 1), call([], [2], 1), call([], [3], 1), call([2], [4], 1),
               call([1], [5], 1), call([0], [6], 1)], {**dict.fromkeys(range(3), 2), 3: 4, 4: 0.25, 5: 0.25, 6: 0.25})
    assert passive_bytes(Lifetimes.of(t), 6 * MIB) == 4 * MIB
    assert passive_bytes(Lifetimes.of(t), 10 * MIB) == 0


def test_what_the_host_has_no_room_for_is_not_swapped():
    """Two tensors are away at the peak; their copies would be hidden, their replays not."""
    t = trace([call([], [0], 1), call([], [1], 1), call([], [4], 50), call([], [2], 1), call([2], [3], 1),
               call([], [5], 50), call([0, 1], [6], 1)], {0: 4, 1: 4, 2: 8, 3: 1, 4: 0.25, 5: 0.25, 6: 0.25})
    for host, ways in ((100, [OUT, OUT]), (4, [OUT, DROP]), (0, [DROP, DROP])):
        plan = Capuchin().plan(t, COSTS, Limits(10 * MIB, host * MIB)).plan
        assert sorted(plan.evictions.values(), key=[OUT, DROP].index) == ways
        assert plan.predicted_seconds == pytest.approx(105e-3 + ways.count(DROP) * 1e-3)


def test_a_replay_that_two_drops_share_is_predicted_once_and_one_that_does_not_fit_not_at_all():
    for size, seconds in ((6, 15e-3 + 12e-3), (8, None)):  # of the source of both
        t = trace([call([], [0], 10), call([0], [1], 1), call([0], [2], 1), call([], [3], 1), call([3], [4], 1),
                   call([1, 2], [5], 1)], {0: size, 1: 4, 2: 4, 3: 14, 4: 1, 5: 0.25})
        plan = CapuchinRecompute().plan(t, COSTS, limits(15)).plan
        assert plan.evictions == {(1, 1): DROP, (2, 1): DROP}
        assert plan.predicted_seconds == (seconds and pytest.approx(seconds))


def work(t: Trace, policy: Capuchin) -> int:
    """How many Python functions are called to plan for half of what the trace needs: a clock that never jitters."""
    budget = max(Lifetimes.of(t).live_bytes) // 2
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        policy.plan(t, COSTS, Limits(budget, 1 << 40))
    finally:
        sys.setprofile(None)
    return count


PLANNERS = [Capuchin(), CapuchinSwap(), CapuchinRecompute(), Capuchin(readings=Readings(listing=True))]


@pytest.mark.default(policy=PLANNERS[:1])
@pytest.mark.parametrize("policy", PLANNERS)
def test_the_python_calls_of_planning_grow_no_faster_than_n_log_n(policy):
    # Each decision looks at all candidates besides, as arrays: 2 s of processor time for a trace of 8,000 calls.
    small, large = (random_trace(random.Random(5), n) for n in (250, 2000))
    ratio = len(large.accesses) / len(small.accesses)
    assert 7 < ratio < 9 and work(large, policy) < ratio * 1.5 * work(small, policy)  # log 2000 / log 250 = 1.4


# With the engine -----------------------------------------------------------------------------------------------------
@pytest.mark.default(network=["resnet"], policy=["capuchin-swap"])
@pytest.mark.parametrize("policy", ["capuchin", "capuchin-swap", "capuchin-recompute"])
@pytest.mark.parametrize("network", ["vgg", "resnet"])
def test_guided_training_changes_no_bit(network, policy):
    reference = train(network, steps=5)
    demand = reference.demand
    for percent in (75, 50):
        budget = max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * percent // 100)
        outcome = train(network, steps=5, policy=policy, memory_budget=budget)
        assert differences(outcome, reference) == []


@pytest.mark.parametrize("seed", range(30))
def test_no_call_has_more_swapped_bytes_on_the_host_than_it_holds(seed):
    """Tensors of 1 to 4 MiB whose uses lie apart by chance; a copy counts from its tensor's eviction to its use."""
    rng = random.Random(seed)
    sizes, uses = {n: float(rng.randint(1, 4)) for n in range(24)}, dict[int, int]()
    for n in range(24):
        uses[n] = rng.randint(n + 2, min(n + 8, 30))
    t = trace([call([n for n, use in uses.items() if use == k], [k] if k < 24 else [24 + k], 5) for k in range(31)],
              sizes | {24 + k: 0.25 for k in range(24, 31)})
    plan = CapuchinSwap().plan(t, COSTS, Limits(8 * MIB, 6 * MIB)).plan
    away = [(t_id, k) for (t_id, count), action in plan.evictions.items() for k in range(t_id, uses[t_id] + 1)]
    assert away and max(sum(sizes[n] for n, at in away if at == k) for k in range(31)) <= 6
