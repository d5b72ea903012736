"""When swap-ins start in the model of an iteration, where the link is slower than what is to hide it."""

import numpy as np
import pytest
from made_traces import UNIT, call, trace_of

from minidl.plan.costs import Costs
from minidl.planning import compiled
from minidl.planning.problem import SWAP, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room


def test_what_is_used_first_gets_room_first():
    # Three tensors are made in 1 s each and read, after 4 s, by calls of 1 s beside their own output; a unit takes 2 s in.
    # There is room for two: the first two come during the 4 s, the third from the second's call on, so its call waits
    # 1 s. Were the last one to have room first, it would come then, too, and the second only when its call waits for it.
    calls = [*(call((), (n,), 1.0) for n in range(3)), call((), (3,), 4.0, (3,)),
             *(call((n,), (4 + n,), 1.0, (n, 4 + n)) for n in range(3))]
    facts = problem(trace_of(calls, [1.0] * 7), Costs(1e-3 / UNIT, 2.0 / UNIT, 0.0))
    assert facts.gap_call.tolist() == [0, 1, 2]
    found, starts = [], np.full(3, -1, np.int64)
    for way in (simulate, compiled.simulate):
        found.append(way(facts, Room(3 * UNIT, 1 << 50, 0.0), np.full(3, SWAP, np.int64), starts, NO_NOTES))
        assert starts.tolist() == [3, 3, 5]
    assert found[0] == found[1]
    assert found[0].seconds == pytest.approx(11.001) and found[0].excess == 0
