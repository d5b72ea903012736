"""Releases as planned: what was brought back for nobody leaves again, whether it has come by then or not."""

import pytest
from made_traces import UNIT, call, trace_of

from minidl import Runtime
from minidl.device.profiles import PROFILES
from minidl.lab.traced import TracedDevice, TracedProgram
from minidl.plan.plan import Action, Eviction, Plan, Proposal
from minidl.policies.passive import Passive

OUT = Action.SWAP_OUT
AWAY_S = 1e-5 + 2 * UNIT / 12.4e9  # for the first copy out: call 2 wants its memory at once


class Following(Passive):
    """Follows a plan that was given, and lets nothing else go once it does."""

    name = "following"
    plans = True

    def __init__(self, plan):
        self.given = plan

    def plan(self, trace, costs, limits):
        return Proposal(self.given)

    def victims(self, resident, pressure):
        return super().victims(resident, pressure) if pressure.trace is None else ()


def grown(plan, between):
    """What an iteration grows by under a plan. Tensor 0 (2 units) is made, is read by call 1, then by the last one;
    before that one, another call makes 5 units of 6; ``between`` are calls in front of this, the first of which makes
    as many."""
    calls = [call((), (0,), 1.0, replayable=False), call((0,), (1,), 1.0, (1,)), *between]
    t = 2 + len(between)
    calls += [call((), (t,), 1.0, (t,)), call((), (t + 1,), 1.0, (t + 1,)), call((0,), (t + 2,), 1.0, (0, t + 2))]
    sizes = [2, 1e-3, *(5 if n == 0 else 1e-3 for n in range(len(between))), 5, 1e-3, 1e-3]
    trace = trace_of(calls, sizes)
    with Runtime(TracedDevice(PROFILES["p100"], trace), policy=Following(plan),
                 memory_budget=round(6.1 * UNIT)) as runtime:
        program = TracedProgram(trace)
        for _ in range(4):
            before = runtime.stats()
            with runtime.iteration():
                program.step()
        return runtime.stats().since(before)


def test_what_is_still_on_its_way_when_it_is_released_leaves_and_comes_back_when_it_is_wanted():
    """Call 2 takes its memory. It comes back after that, for nobody, and is released after call 3, so that call 4 has
    room."""
    between = [call((), (2,), 1.0, (2,)), call((), (3,), 1.0, (3,))]
    found = grown(Plan({(0, 2): OUT}, {(2, 1): (0,), (4, 1): (0,)}, releases={(3, 1): (Eviction(0, OUT),)}), between)
    assert found.swapped_out_bytes == 2 * UNIT
    assert found.swapped_in_bytes == 4 * UNIT
    assert found.stall_seconds == pytest.approx(AWAY_S, rel=1e-3)


def test_what_has_not_come_back_when_it_is_released_does_not_come_any_more():
    """Call 2 takes 5 units until call 4, so that there is no room before; call 3 is the one that releases it."""
    between = [call((), (2,), 1.0), call((), (3,), 1.0, (3,)), call((2,), (4,), 1.0, (4, 2))]
    found = grown(Plan({(0, 2): OUT}, {(2, 1): (0,), (5, 1): (0,)}, releases={(3, 1): (Eviction(0, OUT),)}), between)
    assert found.swapped_in_bytes == 2 * UNIT
    assert found.stall_seconds == pytest.approx(AWAY_S, rel=1e-3)
