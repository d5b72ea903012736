"""Training under ``minidl.torch`` ends with the bits of a run without it, and stays within its budget."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import NETWORKS, ROOMY, forced, peak, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("how", ["keep", "swap", "mixed", "drop"])
def test_whatever_leaves_in_whichever_way_no_bit_of_a_training_differs(network, how):
    memory = forced(how)
    assert same(run(NETWORKS[network]), run(NETWORKS[network], memory=memory))
    report = memory.report()
    assert report.steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 3} and not report.diverged
    assert bool(report.replayed_calls) == (how in ("mixed", "drop"))
    assert report.out_bytes > 0


@pytest.mark.parametrize("policy", ["capuchin", "auto"])
@pytest.mark.parametrize("network", ["convolutional", "transformer"])
@pytest.mark.parametrize("percent", [60, 0])
def test_a_planned_training_holds_a_budget_down_to_its_floor_with_the_same_bits(network, policy, percent):
    known = forced("swap")
    run(NETWORKS[network], 2, known)
    least, most = known.report().floor_bytes, known.report().unmanaged_bytes
    budget = least + (most - least) * percent // 100
    assert peak(NETWORKS[network], minidl.torch.managed(budget, policy=policy)) <= budget
    assert same(run(NETWORKS[network]), run(NETWORKS[network], memory=minidl.torch.managed(budget, policy=policy)))


def test_the_first_step_holds_the_budget_too_though_nothing_is_known_of_it():
    make = NETWORKS["transformer"]
    away = peak(make, minidl.torch.managed(ROOMY), steps=1)
    assert away < 0.75 * peak(make, steps=1)


def test_the_plan_says_how_many_bytes_the_step_takes():
    make = NETWORKS["transformer"]
    for how in ("swap", "mixed", "drop"):
        memory = forced(how)
        taken = peak(make, memory)
        assert 0.9 * memory.report().planned_bytes <= taken <= memory.report().planned_bytes
