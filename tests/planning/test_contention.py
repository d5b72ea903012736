"""Copies that take processors from the kernels beside them: what the model of an iteration makes of that."""


from dataclasses import replace

import numpy as np
import pytest
from made_traces import UNIT, call, trace_of

from minidl.device import profiles
from minidl.device.cpu.device import ThreadedCpu
from minidl.device.cpu.link import MOST_LOST
from minidl.device.sim import SimDevice
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action
from minidl.planning import compiled
from minidl.planning.problem import KEEP, SWAP, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto import Auto

HOST = 1 << 50


def there_and_back(middle, *, size=1.0):
    """Tensor 0 is made in 1 s, rests during calls of ``middle`` seconds that need 4 units, and is read again."""
    calls = [call((), (0,), 1.0), call((), (1,), 1.0)]
    calls += [call((1,), (2 + n,), seconds, (2 + n,)) for n, seconds in enumerate(middle)]
    calls += [call((0, 1), (2 + len(middle),), 1.0, (0, 1, 2 + len(middle)))]
    return trace_of(calls, [size, 2.0, *[2.0] * len(middle), 1.0])


def seconds_of(trace, costs, mode, *, units=100.0):
    """An iteration in which the only gap has this mode; compiled and interpreted it is the same."""
    facts, room = problem(trace, costs), Room(round(units * UNIT), HOST, 0.0)
    modes = np.where(facts.gap_tensor == 0, mode, KEEP)
    found = simulate(facts, room, modes, np.full(len(modes), -1, np.int64), NO_NOTES)
    assert found == compiled.simulate(facts, room, modes, np.full(len(modes), -1, np.int64), NO_NOTES)
    return found.seconds


@pytest.mark.parametrize(("contention", "seconds"), [(0.0, 9.0), (0.25, 9.5), (0.5, 10.0), (1.0, 11.0)])
def test_a_kernel_loses_a_share_of_the_copies_that_run_beside_it(contention, seconds):
    # 1 + 1 + 3 + 3 + 1 s; a unit takes 1 s out, beside the second call (which then takes a part of it more), and 1 s in
    trace = there_and_back((3.0, 3.0))
    costs = Costs(1 / UNIT, 1 / UNIT, 0.0, contention)
    assert seconds_of(trace, costs, KEEP) == 9.0
    assert seconds_of(trace, costs, SWAP) == pytest.approx(seconds)


def test_a_kernel_beside_a_copy_that_outlasts_it_takes_as_long_as_what_is_left_to_it_allows():
    # 4 s out, beginning with call 1: at half of their speed calls 1 and 2 take 2 s each, then call 3 its own; 4 s in
    # begin with call 4 and take 2 s of its 30.
    trace = there_and_back((1.0, 1.0, 30.0), size=4.0)
    costs = Costs(1 / UNIT, 1 / UNIT, 0.0, 0.5)
    assert seconds_of(trace, costs, KEEP) == 35.0
    assert seconds_of(trace, costs, SWAP) == pytest.approx(35.0 + 2.0 + 2.0)


def test_where_computation_stands_still_beside_copies_it_loses_all_of_their_time():
    # 4 s out beside call 1 of 1 s, which begins when they have ended; 4 s in, beside the last but one.
    trace = there_and_back((1.0, 1.0, 30.0), size=4.0)
    assert seconds_of(trace, Costs(1 / UNIT, 1 / UNIT, 0.0, 1.0), SWAP) == pytest.approx(35.0 + 4.0 + 4.0)


def test_a_copy_that_computation_waits_for_takes_nothing_from_it():
    # Within 4 units tensor 0 can come back only for the last call, which waits for it: 1 s.
    trace = there_and_back((3.0,))
    costs = Costs(1e-18, 1 / UNIT, 0.0, 0.5)
    assert seconds_of(trace, costs, SWAP, units=4.0) == pytest.approx(6.0 + 1.0)


def test_auto_drops_what_it_would_swap_if_copies_took_nothing_from_kernels():
    # Within 4 units tensor 0 has to leave for a call of 6 s: made again it costs 1 s more; both copies, of 1 s each,
    # are hidden, the second beside a call of 3 s that needs less; they take up to 1.6 s of these.
    trace = trace_of([call((), (0,), 1.0), call((), (1,), 1.0), call((1,), (2,), 6.0, (2,)),
                      call((1,), (3,), 3.0, (3,)), call((0, 1), (4,), 1.0, (0, 1, 4))], [1.0, 2.0, 2.0, 1.0, 1.0])
    for contention, action in ((0.0, Action.SWAP_OUT), (0.8, Action.DROP)):
        costs = Costs(1 / UNIT, 1 / UNIT, 0.0, contention)
        plan = Auto().plan(trace, costs, Limits(round(4.2 * UNIT), HOST)).plan
        assert set(plan.evictions.values()) == {action}, contention


@pytest.mark.parametrize(("threads", "processors", "lost"), [(2, 2, 0.5), (4, 4, 0.25), (1, 2, 0.0), (1, 1, MOST_LOST)])
def test_on_worker_threads_a_copy_takes_one_of_the_processors_that_kernels_use(monkeypatch, threads, processors, lost):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(processors)), raising=False)
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", threads)
    device = ThreadedCpu("cpu", profiles.get("cpu"))
    assert device.link_costs == replace(device.profile.link_costs, contention=lost)


def test_where_time_is_modelled_copies_take_nothing_from_kernels():
    assert SimDevice("sim:p100", profiles.get("p100")).link_costs.contention == 0.0
