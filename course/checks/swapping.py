"""Checks of lesson 3: free time, in-triggers, the queue on a link, and feedback."""

from __future__ import annotations

from typing import Any

from checks.verdict import Case, first_difference, judged
from minidl.lab.training_step import trace_of
from minidl.plan.costs import Costs
from minidl.plan.plan import Action, Plan
from minidl.report.decisions import decisions

COSTS = Costs(out_seconds_per_byte=1e-10, in_seconds_per_byte=2e-10, latency_seconds=0.0)


def measured() -> list[Case]:
    """Gaps of a training step of a network, with the free time that `--explain` says."""
    trace = trace_of("lenet", 256)
    keys = {(access.tensor_id, access.access_count) for access in trace.accesses}
    plan = Plan({key: Action.SWAP_OUT for key in sorted(keys) if key[0] >= 0 and (key[0], key[1] + 1) in keys})
    return [((d.evict_s, d.back_s, d.nbytes * COSTS.out_seconds_per_byte, d.nbytes * COSTS.in_seconds_per_byte),
             d.free_time_s) for d in decisions(trace, plan, COSTS)]


@judged("minidl's --explain says the same for every tensor of a step of LeNet.")
def free_time(answer: Any) -> str:
    """Exercise 1."""
    cases: list[Case] = [((1.0, 9.0, 2.0, 3.0), 3.0), ((0.0, 1.0, 1.0, 1.0), -1.0), *measured()]
    return first_difference(answer, cases)


@judged("Later and the computation waits; earlier and the tensor takes up room that others want.")
def in_trigger(answer: Any) -> str:
    """Exercise 2."""
    times = [0.0, 1.0, 2.0, 4.0, 5.0, 9.0, 10.0]
    # Wanted at 9: a copy of 2 s starts at 7 at the latest, so after access 4; one of 4 s at 5, before access 4.
    return first_difference(answer, [((times, 0, 5, 2.0), 4), ((times, 0, 5, 4.0), 3), ((times, 0, 5, 8.5), 5),
                                     ((times, 4, 6, 8.0), 6), ((times, 1, 6, 1.5), 4)])


@judged("The third copy waits for the second although it was asked for in time.")
def copy_ends(answer: Any) -> str:
    """Exercise 3."""
    return first_difference(answer, [(([0.0, 5.0], [2.0, 2.0]), [2.0, 7.0]),
                                     (([0.0, 1.0, 2.0, 20.0], [2.0, 4.0, 1.0, 1.0]), [2.0, 6.0, 7.0, 21.0]),
                                     (([], []), [])])


@judged("At most twenty, then, if a copy was late by all of its length: the paper sees plans settle in fifty steps.")
def corrections(answer: Any) -> str:
    """Exercise 4. Times are powers of two and sums of them, so that nothing is rounded."""
    return first_difference(answer, [((0.0, 1.0), 0), ((1.0, 1.0), 20), ((0.25, 1.0), 5), ((0.015625, 1.0), 1),
                                     ((0.5, 4.0), 3), ((3.0, 2.0), 30)])
