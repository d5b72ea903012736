"""Bit for bit: whatever the policy and the budget, training ends in the state of the unlimited run.

Every arena is poisoned, so a tensor that is read before its bytes are back, or after they were given away, shows.
"""

from functools import cache

import pytest
from networks import UNLIMITED, Outcome, differences, train

from minidl.errors import OutOfMemory
from minidl.meta import ALIGNMENT

NETS = ("vgg", "resnet", "branching")
POLICIES = ("passive", "recompute")
STEPS = 3  # the first has no gradients yet, the second is like all after it, the third sees what the second left
ACTIVATION_OPS = {"conv2d", "conv2d_relu", "batch_norm_grad", "add", "conv2d_wgrad"}


@cache
def unlimited(network: str, optimizer: str = "momentum", batch: int | None = None) -> Outcome:
    outcome = train(network, steps=STEPS, optimizer=optimizer, batch=batch)
    assert outcome.stats.swapped_out_bytes == outcome.stats.recomputed_bytes == 0
    return outcome


def budget_of(reference: Outcome, percent: int) -> int:
    """Percent of the unmanaged peak, or the smallest budget that will do; 0 percent is exactly that one."""
    demand = reference.demand
    return max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * percent // 100)


@pytest.mark.parametrize("network", NETS)
def test_the_networks_test_what_they_should(network):
    """The floor is set by an operation on activations, with its workspace, and lies below 40% of the peak."""
    reference = unlimited(network)
    demand = reference.demand
    assert demand.largest_op in ACTIVATION_OPS
    assert demand.largest_op_bytes < 0.4 * demand.unmanaged_peak_bytes
    # The dry run assumes no workspace; a real unmanaged run may use more, never less.
    assert demand.unmanaged_peak_bytes <= reference.stats.peak_bytes < 1.2 * demand.unmanaged_peak_bytes
    assert all(loss == loss for loss in reference.losses) and len(set(reference.losses)) == STEPS
    kinds = ("state ", "gradient ", "optimizer momentum", "losses", "random")
    assert all(any(name.startswith(kind) for name in reference.state) for kind in kinds)
    assert ("state 1.running_mean" in reference.state) == (network == "resnet")


@pytest.mark.default(percent=[0])
@pytest.mark.parametrize("percent", [100, 75, 50, 35, 0])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETS)
def test_a_budget_changes_no_bit(network, policy, percent):
    reference = unlimited(network)
    budget = budget_of(reference, percent)
    outcome = train(network, steps=STEPS, policy=policy, memory_budget=budget)
    assert differences(outcome, reference) == []
    stats = outcome.stats
    assert stats.peak_bytes <= stats.budget_bytes <= budget
    if percent <= 75:  # there was pressure, and the policy answered it in its own way
        assert (stats.swapped_out_bytes if policy == "passive" else stats.recomputed_bytes) > 0
    if policy == "passive":
        assert stats.recomputed_bytes == 0  # as long as the host has room


@pytest.mark.default(network=["branching"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETS)
def test_every_invariant_holds_after_every_call_at_the_smallest_budget(network, policy):
    reference = unlimited(network)
    outcome = train(network, steps=STEPS, policy=policy, memory_budget=budget_of(reference, 0), checked=True)
    assert differences(outcome, reference) == []


@pytest.mark.default(policy=["passive"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_optimizer_state_survives_swapping(optimizer, policy):
    reference = unlimited("resnet", optimizer, 4)
    outcome = train("resnet", steps=STEPS, policy=policy, memory_budget=budget_of(reference, 0), optimizer=optimizer,
                    batch=4)
    assert differences(outcome, reference) == []
    assert outcome.stats.swapped_out_bytes > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_network_of_matrix_products_changes_no_bit(policy):
    reference = unlimited("mlp", "adam", 512)
    outcome = train("mlp", steps=STEPS, policy=policy, memory_budget=budget_of(reference, 0), optimizer="adam",
                    batch=512)
    assert differences(outcome, reference) == []
    assert outcome.stats.swapped_out_bytes > 0


@pytest.mark.default(network=["resnet"])
@pytest.mark.parametrize("percent", [75, 50])
@pytest.mark.parametrize("network", NETS)
def test_a_nearly_full_host_turns_swapping_into_recomputation(network, percent):
    """How little host memory will do is a matter of what is evicted first; whatever does, changes no bit."""
    reference = unlimited(network)
    degraded = 0
    for host_percent in (5, 10, 20, 30, 40):
        host = reference.demand.unmanaged_peak_bytes * host_percent // 100
        try:
            outcome = train(network, steps=STEPS, policy="passive", memory_budget=budget_of(reference, percent),
                            host_memory=host)
        except OutOfMemory as error:
            assert "host memory is full" in str(error)
            continue
        assert differences(outcome, reference) == []
        assert outcome.stats.host_peak_bytes <= host
        degraded += outcome.stats.recomputed_bytes > 0 and outcome.stats.swapped_out_bytes > 0
    assert degraded >= 2


@pytest.mark.default(network=["vgg"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETS)
def test_without_host_memory_lineage_alone_is_enough_at_75_percent(network, policy):
    reference = unlimited(network)
    outcome = train(network, steps=STEPS, policy=policy, memory_budget=budget_of(reference, 75), host_memory=0)
    assert differences(outcome, reference) == []
    assert outcome.stats.swapped_out_bytes == 0 < outcome.stats.recomputed_bytes


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETS)
def test_one_unit_below_the_smallest_budget_is_refused_by_name(network, policy):
    demand = unlimited(network).demand
    budget = demand.largest_op_bytes - ALIGNMENT
    with pytest.raises(OutOfMemory, match=rf"^{demand.largest_op}: need [0-9.]+ K?i?B") as error:
        train(network, steps=STEPS, policy=policy, memory_budget=budget)
    assert error.value.op == demand.largest_op and error.value.budget_bytes == budget
    assert error.value.need_bytes > budget


@pytest.mark.parametrize("network", NETS)
def test_without_a_policy_the_first_failure_is_the_end(network):
    reference = unlimited(network)
    peak = reference.stats.peak_bytes
    # The arena's fragmentation comes on top of the peak: a tenth is room enough.
    assert differences(train(network, steps=STEPS, policy="none", memory_budget=peak * 11 // 10), reference) == []
    with pytest.raises(OutOfMemory, match="policy 'none' evicts nothing"):
        train(network, steps=STEPS, policy="none", memory_budget=peak // 2)


def test_unlimited_runs_under_every_policy_touch_no_host_memory():
    for policy in POLICIES:
        outcome = train("vgg", steps=STEPS, policy=policy, memory_budget=UNLIMITED)
        assert differences(outcome, unlimited("vgg")) == []
        assert outcome.stats.host_peak_bytes == outcome.stats.moved_bytes == outcome.stats.recomputed_bytes == 0
