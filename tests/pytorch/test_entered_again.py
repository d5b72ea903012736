"""A program may enter the management anew for each step, for instance by a decorator of its step. Plans are void once
the optimizer's state is not as they count on."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import NETWORKS, ROOMY, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402

STEPS = 5


def test_steps_that_enter_one_by_one_hold_the_budget_with_the_same_bits():
    known = minidl.torch.managed(ROOMY)
    run(NETWORKS["transformer"], 3, known)
    floor = known.report().floor_bytes
    memory = minidl.torch.managed(floor)
    torch.manual_seed(0)
    program = NETWORKS["transformer"]()
    losses = []
    for _ in range(STEPS):
        # Leaving brings the optimizer's state back, which no budget holds then.
        with memory, minidl.torch.Meter(program.lasting()) as meter:
            losses.append(program.step())
        assert meter.peak <= floor
    assert memory.report().unmanaged_bytes == pytest.approx(known.report().unmanaged_bytes, rel=0.01)
    torch.manual_seed(0)
    plain = NETWORKS["transformer"]()
    assert same(losses, [plain.step() for _ in range(STEPS)])
    assert same(list(plain.network.parameters()), list(program.network.parameters()))


def test_a_plan_is_void_once_the_program_holds_the_state_that_the_plan_takes_away():
    known = minidl.torch.managed(ROOMY)
    run(NETWORKS["transformer"], 3, known)
    memory = minidl.torch.managed(known.report().floor_bytes)
    torch.manual_seed(0)
    program = NETWORKS["transformer"]()
    with memory:
        for _ in range(STEPS):
            program.step()
    held = [tensor for state in program.optimizer.state.values() for tensor in state.values()]  # now on the device
    with memory, pytest.raises(minidl.torch.BudgetTooSmall):
        program.step()
    assert held
    roomy = minidl.torch.managed(known.report().unmanaged_bytes)
    with roomy:
        for _ in range(STEPS):
            program.step()
    assert roomy.report().planned_bytes <= roomy.budget


def test_lbfgs_holds_its_budget_when_its_history_has_filled():
    def steps(memory, count=6):
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
        network, x, y = torch.nn.Sequential(*layers), torch.randn(256, 64), torch.randn(256, 64)
        optimizer = torch.optim.LBFGS(network.parameters(), max_iter=4, history_size=6)  # full after the second step

        def closure():
            optimizer.zero_grad()
            loss = (network(x) - y).pow(2).mean()
            loss.backward()
            return loss

        def lasting():  # one by one, since a list would hold the state
            yield from network.parameters()
            for value in (v for state in optimizer.state.values() for v in state.values()):
                yield from (t for t in (value if isinstance(value, list) else [value]) if isinstance(t, torch.Tensor))
        losses, peaks = [], []
        with memory:
            for _ in range(count):
                with minidl.torch.Meter(lasting()) as meter:
                    losses.append(optimizer.step(closure).detach())
                peaks.append(meter.peak)
        return losses, peaks

    known = minidl.torch.managed(ROOMY)
    losses, free = steps(known)
    memory = minidl.torch.managed(known.report().floor_bytes)
    held, peaks = steps(memory)
    assert max(peaks) <= memory.budget < max(free) * 0.9
    assert memory.report().steps[Phase.GUIDED] >= 2
    assert same(losses, held)


@pytest.mark.parametrize("code", ["def f(): yield", "async def f(): pass", "async def f(): yield"])
def test_a_function_whose_code_runs_after_its_call_is_refused(code):
    made = {}
    exec(code, made)
    with pytest.raises(TypeError, match="f is a generator or coroutine function"):
        minidl.torch.managed(ROOMY)(made["f"])


def test_management_that_has_ended_keeps_no_optimizer_alive():
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    memory = minidl.torch.managed(ROOMY)
    with memory:
        loss = weight.exp().sum()
        loss.backward(retain_graph=True)
        optimizer.step()  # it ends no step: autograd still holds what another backward pass may read
    assert not memory.report().steps
    alive = weakref.ref(optimizer)
    del optimizer, loss
    gc.collect()
    assert alive() is None
