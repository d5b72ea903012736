"""Between two iterations of a plan with addresses, what survives lies where the plan counts on it."""

import numpy as np
import pytest

from minidl import Runtime
from minidl.lab.training_step import training_step
from minidl.memory.guided.packing import pack_survivors
from minidl.memory.storage import SWAPPING_OUT
from minidl.ops import exp
from minidl.plan.plan import Action, Plan, Proposal
from minidl.policies.auto.policy import Auto
from minidl.policies.passive import Passive
from minidl.runtime import parameter


def order(runtime):
    """Whether each block, from the low end, is free or about to be (None), or of a persistent tensor."""
    owners = [None if block.owner is None else block.owner() for block in runtime.memory.arena.blocks()]
    return [None if owner is None or owner.status is SWAPPING_OUT else owner.persistent for owner in owners]


def is_packed(blocks):
    """Persistent tensors first, then the others, then what is free."""
    return blocks == sorted(blocks, key=lambda kind: (kind is None, kind is False))


@pytest.mark.slow
def test_what_stays_is_packed_before_the_first_iteration_of_a_plan_and_after_each():
    with Runtime("sim:p100", policy=Auto(rounds=4)) as runtime:
        step = training_step("resnet18", 1400)
        packed = []
        for _ in range(16):
            with runtime.iteration():
                step()
            runtime.check()
            if runtime.guide.offsets:
                lasting = [kind is True for kind in order(runtime)]
                packed.append(lasting == sorted(lasting, reverse=True))
        assert runtime.guide.diverged == 0
    assert len(packed) > 3 and all(packed)


@pytest.mark.parametrize("poisoned", [False, True])
def test_packing_keeps_every_value(poisoned):
    rng = np.random.default_rng(0)
    with Runtime("cpu:virtual", policy="passive", memory_budget="16MiB", poisoned=poisoned) as runtime:
        memory = runtime.memory
        made = []
        for n in range(12):  # persistent ones and others in turn, some of them on the host
            values = rng.standard_normal(1000 * (n + 1)).astype(np.float32)
            tensor = runtime.tensor(values)
            tensor.storage.persistent = n % 3 == 0
            made.append((tensor, values))
        for tensor, _ in made[:7:2]:
            memory.state.arena_busy.on = True
            assert memory.evict(tensor.storage, Action.SWAP_OUT)
            memory.state.arena_busy.on = False
        assert not is_packed(order(runtime))
        memory.state.arena_busy.on = True
        pack_survivors(memory.state, [tensor.storage for tensor, _ in made], away=[])
        memory.state.arena_busy.on = False
        runtime.check()
        blocks = order(runtime)
        assert is_packed(blocks) and blocks.count(True) == 4  # the persistent ones are back
        for tensor, values in made:
            assert np.array_equal(tensor.numpy(), values)


def test_persistent_tensors_come_lowest_though_the_others_do_not_all_fit_above_them():
    values = np.arange(1 << 18, dtype=np.float32)  # 1 MiB
    with Runtime("cpu:virtual", policy="passive", memory_budget="11MiB") as runtime:
        made = [runtime.tensor(values + n) for n in range(10)]
        for tensor in made[7:9]:
            tensor.storage.persistent = True
        runtime.memory.state.arena_busy.on = True
        pack_survivors(runtime.memory.state, [tensor.storage for tensor in made], away=[])
        runtime.memory.state.arena_busy.on = False
        runtime.check()
        assert order(runtime) == [True] * 2 + [False] * 8 + [None]
        assert all(np.array_equal(tensor.numpy(), values + n) for n, tensor in enumerate(made))


class _EvictsTheFirstResult(Passive):
    """Follows a plan that evicts the iteration's first result, which has an address, as soon as it is made."""

    plans = True

    def plan(self, trace, costs, limits):
        return Proposal(Plan({(1, 1): Action.SWAP_OUT}, offsets={(1, 0): 32 << 20}))


def test_persistent_tensors_come_lowest_while_a_result_of_the_iteration_is_still_being_copied_out():
    with Runtime("sim:p100", policy=_EvictsTheFirstResult(), memory_budget="64MiB") as runtime:
        made = weight = None
        for number in range(4):
            with runtime.iteration():
                x = runtime.tensor(None, shape=(1 << 20,))
                made, _ = exp(x), exp(x)
                if number == 3:  # the plan is followed
                    below, weight = runtime.tensor(None, shape=(1 << 20,)), parameter((1 << 20,))
                    assert weight.storage.block.offset > 0
                    del below
        assert made.storage.residency == 0  # it has left
        assert weight.storage.block.offset == 0
