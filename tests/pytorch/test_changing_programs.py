"""Programs that change as they run: other shapes, more tensors on the device, passes between steps."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_nets import ROOMY, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.course import MOST_VAIN, Phase  # noqa: E402

WIDTH = 64


def layers(count=6):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)))


def with_lengths(lengths, memory):
    """Train on one batch of each length; return all that the training computes."""
    network, losses = layers(), []
    optimizer = torch.optim.AdamW(network.parameters())
    with memory:
        for length in lengths:
            optimizer.zero_grad()
            loss = network(torch.randn(4, length, WIDTH)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [*losses, *network.parameters(), *(t for state in optimizer.state.values() for t in state.values())]


@pytest.mark.parametrize("others", [MOST_VAIN - 1, MOST_VAIN + 1, 5 * MOST_VAIN])
def test_a_training_gets_a_plan_once_its_lengths_settle_however_many_came_before(others):
    lengths = [32 + n for n in range(others)] + [24] * 8
    memory = minidl.torch.managed(ROOMY)
    assert same(with_lengths(lengths, memory), with_lengths(lengths, contextlib.nullcontext()))
    assert memory.report().steps[Phase.GUIDED] >= 5


def test_lengths_that_come_back_in_no_order_get_plans_of_their_own():
    lengths = [32 + n for n in range(2 * MOST_VAIN)] + [32 + 7 * n % (2 * MOST_VAIN) for n in range(6 * MOST_VAIN)]
    memory = minidl.torch.managed(ROOMY)
    assert same(with_lengths(lengths, memory), with_lengths(lengths, contextlib.nullcontext()))
    assert len([known for known in memory.course.known if known.obeyed is not None]) > MOST_VAIN


def test_a_budget_that_is_too_small_is_refused_after_any_number_of_lengths():
    with pytest.raises(minidl.torch.BudgetTooSmall, match="this step needs"):
        with_lengths([32 + n for n in range(MOST_VAIN + 1)] + [64] * 4, minidl.torch.managed(300_000))
