"""Budgets and other options that are refused, with a message that says why."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import NETWORKS, ROOMY, run  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.errors import UserError  # noqa: E402


def test_a_budget_below_the_floor_is_refused_with_what_makes_the_need_up():
    make = NETWORKS["transformer"]
    known = minidl.torch.managed(ROOMY)
    run(make, 2, known)
    floor = known.report().floor_bytes
    with pytest.raises(minidl.torch.BudgetTooSmall, match=r"needs .* at .*parameters .*gradients ") as refused:
        run(make, 3, minidl.torch.managed(floor - 1))
    assert refused.value.need_bytes == floor and refused.value.budget_bytes == floor - 1
    assert sum(refused.value.parts.values()) == floor
    assert str(refused.value).startswith(f"budget {floor - 1} B: ") and f" needs {floor} B, " in str(refused.value)
    del refused  # its traceback holds the network, whose tensors count on a CPU
    run(make, 3, minidl.torch.managed(floor))


def test_a_budget_that_is_too_small_because_the_host_is_full_is_refused_with_the_size_of_the_host():
    make = NETWORKS["transformer"]
    known = minidl.torch.managed(ROOMY)
    run(make, 2, known)
    budget = known.report().floor_bytes
    with pytest.raises(minidl.torch.BudgetTooSmall, match=r"the host's 5\.0 KiB are full, so this step needs "):
        run(make, 3, minidl.torch.managed(budget, host="5KiB"))
    run(make, 3, minidl.torch.managed(budget, host=known.report().host_bytes))


@pytest.mark.parametrize("device", ["cpu:0", "CPU", "gpu", ""])
def test_a_device_that_is_no_type_of_devices_is_refused_by_name(device):
    with pytest.raises(UserError, match=f"'cuda' or 'cpu', .*not '{device}'"):
        minidl.torch.managed(ROOMY, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="'cuda': PyTorch finds no GPU"):
        minidl.torch.managed(ROOMY, device="cuda")


@pytest.mark.parametrize("size", ["12 apples", 0, -1, True, 1.5])
def test_a_budget_that_is_no_size_is_refused(size):
    with pytest.raises(UserError):
        minidl.torch.managed(size)
