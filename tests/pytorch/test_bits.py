"""Training under ``minidl.torch`` ends with the bits of a run without it, and stays within its budget."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_nets import NETWORKS, ROOMY, Program, forced, peak, run, same  # noqa: E402

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


@pytest.mark.parametrize("network", ["convolutional", "transformer"])
def test_the_plan_says_how_many_bytes_the_step_takes(network):
    make = NETWORKS[network]
    for how in ("swap", "mixed", "drop", "some"):
        memory = forced(how)
        taken = peak(make, memory)
        assert 0.9 * memory.report().planned_bytes <= taken <= memory.report().planned_bytes


class ReadsStatistics(nn.Module):
    """A layer whose saved results are computed from running statistics that batch norm overwrites in the same step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.randn(48, 48))
        self.register_buffer("mean", torch.zeros(48))
        self.register_buffer("scale", torch.randn(48, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[48, 48] -> the same."""
        if self.how == "statistics":
            # The replay of the sum runs batch norm again and reads what batch norm has written.
            return F.batch_norm(x @ self.weight, self.mean, torch.ones(48), training=True) + self.mean.clone()
        held = self.scale + self.mean.clone()  # the product saves it, and the variable holds it during the write
        return held * self.weight + F.batch_norm(x, self.mean, torch.ones(48), training=True)


@pytest.mark.parametrize("how", ["statistics", "held during the write"])
def test_a_dropped_tensor_computed_from_statistics_that_the_step_overwrites_has_its_old_bits(how):
    def make():
        network, x = ReadsStatistics(how), torch.randn(48, 48)
        return Program(network, torch.optim.SGD(network.parameters(), 0.1), lambda: network(x).pow(2).mean())

    memory = forced("drop")
    assert same(run(make), run(make, memory=memory))
    assert memory.report().steps[Phase.GUIDED] == 3
