"""The access list that is kept while calls come gives passive mode the victims that a ranking of everybody would."""

import pytest
from program_runs import UNLIMITED, Ours, reference
from whole_programs import program

from minidl.memory.evicting import Evicting
from minidl.ops.elementwise import scale
from minidl.policies.passive import Passive
from minidl.runtime import Runtime


class RanksAll(Passive):
    """Passive mode that is shown everybody."""

    reads_from_front = False


def _evictions(of, policy, budget, monkeypatch):
    """Which tensors were asked to leave in a run, in order."""
    gone = []
    evict = Evicting.evict

    def noted(self, storage, action):
        gone.append((storage.tensor_id, storage.nbytes))
        return evict(self, storage, action)

    with monkeypatch.context() as patched:
        patched.setattr(Evicting, "evict", noted)
        machine = Ours(of, Runtime("cpu:virtual", policy=policy, memory_budget=budget, host_memory=UNLIMITED))
        for _ in machine.iterations():
            pass
    return gone


@pytest.mark.parametrize("first", [0, 30])
def test_the_same_tensors_leave_in_the_same_order(first, monkeypatch, one_thread):
    left = 0
    for seed in range(first, first + 30):
        of = program(seed)
        need = reference(of)
        budget = need.floor + (need.peak - need.floor) // 3 // 256 * 256
        fast, all_ = (_evictions(of, policy, budget, monkeypatch) for policy in (Passive(), RanksAll()))
        assert fast == all_, f"program {seed}"
        left += len(fast)
    assert left > 100


def test_the_policy_is_asked_about_few_of_many():
    """A thousand tensors are on the device; each allocation wants one of them to leave."""
    asked = []

    class Counting(Passive):
        def victims(self, resident, pressure):
            asked.append(len(resident))
            return super().victims(resident, pressure)

    with Runtime("sim:p100", policy=Counting(), memory_budget=256 * 1000) as runtime, runtime.iteration():
        x = runtime.tensor(None, shape=(64,))
        kept = [scale(x, 2.0) for _ in range(2000)]
        runtime.check()
    assert len(asked) > 1000 and max(asked) <= 16 and len(kept) == 2000
