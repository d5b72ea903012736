"""The access list that is kept while calls come gives passive mode the victims that a ranking of everybody would."""

import pytest
from networks import UNIT, leaf, small_runtime, swap_out
from program_runs import UNLIMITED, Ours, reference
from whole_programs import program

from minidl.memory.evicting import Evicting
from minidl.memory.storage import OUT
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


def test_what_was_brought_in_too_early_is_on_the_list_again_when_memory_is_short():
    """4 units for a, b and c; a is on its way back when all 4 are wanted."""
    with small_runtime(units=4, policy="capuchin") as runtime:
        a, b, c = (leaf(runtime, float(n)) for n in range(3))
        swap_out(runtime, a)
        state = runtime.memory.state
        assert len(state.access_list.front(UNIT, set(), 4)) == 2  # the list is in order now: nobody looks at all again
        state.allocator.start_swap_in(a.storage, state.arena.allocate(UNIT, a.storage.me))
        everything = leaf(runtime, units=4)
        assert {t.status for t in (a, b, c)} == {OUT}
        del everything
        assert [float(t.numpy()[0]) for t in (a, b, c)] == [0.0, 1.0, 2.0]
        runtime.check()
