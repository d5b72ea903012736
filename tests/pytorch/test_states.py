"""The optimizer's state waits on the host between steps: what a program sees of it, and what a step needs then."""

import contextlib
import copy
import functools
import gc
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import ROOMY, Program, run, same  # noqa: E402
from torch_threads import Threads  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.backends import Immediate, on_host  # noqa: E402
from minidl.torch.optimizers import BY_PARAMETER, parts_of  # noqa: E402
from minidl.torch.states import States  # noqa: E402

WIDTH = 48
OPTIMIZERS = {name: {} for name in BY_PARAMETER if hasattr(torch.optim, name)} | {
    "SGD": {"momentum": 0.9, "nesterov": True}, "RMSprop": {"momentum": 0.5, "centered": True},
    "Adam": {"amsgrad": True}}


class Odd(torch.optim.Optimizer):
    """Factored second moments, as Adafactor's; a list, numbers and tensors without a key of their own beside them; a
    new tensor in place of the old one in every step."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        """One step."""
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(seen=0, beside=[torch.zeros_like(p)], mean=torch.zeros_like(p),
                                 rows=torch.zeros(p.shape[0], 1).expand(p.shape[0], 40).clone())
                state["seen"] += self.steps
                state["mean"] = state["mean"] * 0.9 + p.grad * 0.1
                state["rows"].mul_(0.9).add_(p.grad.reshape(p.shape[0], -1).pow(2).mean(1, keepdim=True), alpha=0.1)
                state["beside"][0].add_(state["mean"])
                p.sub_(group["lr"] * (state["mean"] + 1e-3 * state["beside"][0]))


def program(make):
    """Four layers trained by an optimizer; every matrix has 9,216 bytes."""
    network = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.Tanh())
                                    for _ in range(4)))
    x = torch.randn(16, WIDTH)
    return Program(network, make(network.parameters()), lambda: network(x).pow(2).mean())


def made(name, **more):
    return lambda: program(lambda parameters: getattr(torch.optim, name)(parameters, **OPTIMIZERS[name], **more))


def away(**more):
    """Return a ``managed`` under which all optimizer state waits on the host between steps."""
    memory = minidl.torch.managed(ROOMY, **more)
    memory.deciding.share = 0.0
    return memory


def waiting(optimizer):
    return [t for state in optimizer.state.values() for t in state.values()
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in on_host]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_pytorch_steps_in_parts_with_the_same_bits(name, foreach):
    more = {} if name == "Muon" else {"foreach": foreach}
    memory = away()
    assert same(run(made(name, **more), 4), run(made(name, **more), 4, memory))
    # SGD's momentum is 4 matrices, each brought and sent in each of 4 steps but for the first bringing
    assert memory.report().state_bytes >= (4 + 3) * 4 * 4 * WIDTH * WIDTH or name == "Adafactor"


def test_the_fused_step_of_adam_has_the_same_bits_in_parts():
    memory = away()
    assert same(run(made("AdamW", fused=True), 4), run(made("AdamW", fused=True), 4, memory))
    assert memory.report().state_bytes > 0


@pytest.mark.parametrize("backend", [Immediate, Threads])
def test_an_optimizer_that_is_not_known_has_its_state_back_as_a_whole(backend):
    memory = away(backend=backend(ROOMY))
    assert same(run(lambda: program(Odd), 4), run(lambda: program(Odd), 4, memory))
    assert memory.report().state_bytes > 0


def test_between_steps_the_program_finds_the_state_and_what_it_changes_counts():
    def trained(memory=None):
        torch.manual_seed(0)
        each = made("AdamW")()
        seen, waited = [], []

        def step():
            each.step()
            waited.append(len(waiting(each.optimizer)))
            state = each.optimizer.state[next(iter(each.network.parameters()))]
            seen.append(state["exp_avg"].numpy().copy())
            state["exp_avg"].mul_(0.5)                         # written in place
            state["exp_avg_sq"] = state["exp_avg_sq"] * 2      # another tensor in its place
            file = io.BytesIO()
            torch.save(each.optimizer.state_dict(), file)
            seen.append(copy.deepcopy(each.optimizer.state_dict()))
            file.seek(0)
            each.optimizer.load_state_dict(torch.load(file))
        if memory is None:
            for _ in range(4):
                step()
        else:
            with memory:
                for _ in range(4):
                    step()
            assert waited == [8] * 4
        assert not waiting(each.optimizer)
        return [*each.state(), *(torch.from_numpy(one) for one in seen[::2]),
                *(t for one in seen[1::2] for state in one["state"].values() for t in state.values())]
    assert same(trained(), trained(away()))


def test_a_state_names_the_same_tensor_after_each_step_and_its_values_are_the_latest():
    torch.manual_seed(0)
    each = made("SGD")()
    parameter = next(iter(each.network.parameters()))
    with away():
        each.step()
        held = each.optimizer.state[parameter]["momentum_buffer"]
        before = held.clone()
        each.step()
        assert each.optimizer.state[parameter]["momentum_buffer"] is held and not held.equal(before)


def test_what_something_else_holds_stays_where_it_is():
    torch.manual_seed(0)
    each = made("SGD")()
    parameter = next(iter(each.network.parameters()))
    each.step()
    held = each.optimizer.state[parameter]["momentum_buffer"]
    part = each.optimizer.state[list(each.network.parameters())[1]]["momentum_buffer"][0]
    with away():
        for _ in range(3):
            each.step()
            assert each.optimizer.state[parameter]["momentum_buffer"] is held
            assert len(waiting(each.optimizer)) == 2  # of four matrices
    assert part.equal(each.optimizer.state[list(each.network.parameters())[1]]["momentum_buffer"][0])


def test_a_step_that_fails_leaves_all_parameters_in_their_groups_and_the_state_in_reach():
    torch.manual_seed(0)
    each = made("AdamW")()
    with away():
        each.step()
        groups = [list(group["params"]) for group in each.optimizer.param_groups]
        parameters = list(each.network.parameters())
        parameters[2].grad = torch.zeros(WIDTH, WIDTH).to_sparse()  # which AdamW refuses
        with pytest.raises(RuntimeError):
            each.optimizer.step()
        assert all(a is b for one, other in zip(groups, [g["params"] for g in each.optimizer.param_groups], strict=True)
                   for a, b in zip(one, other, strict=True))
        each.step()
    assert not waiting(each.optimizer)


@pytest.mark.parametrize("kind", ["closure", "hook"])
def test_a_step_that_others_look_into_is_one_step(kind):
    def trained(memory=None):
        torch.manual_seed(0)
        each = made("AdamW")()
        calls = []
        if kind == "hook":
            each.optimizer.register_step_post_hook(
                lambda optimizer, args, kwargs: calls.append(len(optimizer.param_groups[0]["params"])))

        def step():
            if kind == "hook":
                return each.step()

            def closure():
                calls.append(0)
                each.optimizer.zero_grad()
                loss = each.loss()
                loss.backward()
                return loss
            return each.optimizer.step(closure)
        with memory or torch.enable_grad():
            for _ in range(3):
                step()
        return [*each.state(), torch.tensor(calls)]
    memory = away()
    assert same(trained(), trained(memory))
    assert memory.report().state_bytes > 0


@pytest.mark.parametrize("hooked", [True, False])
def test_a_step_that_the_program_has_wrapped_is_one_step(hooked, monkeypatch):
    """The wrapper clips all gradients by their common norm, which parts of the step would not have."""
    made("AdamW")()  # PyTorch puts its hooks around the step as the first optimizer of a class is made
    step = torch.optim.AdamW.step if hooked else torch.optim.AdamW.step.__wrapped__
    clipped = []

    def clipping(optimizer):
        parameters = optimizer.param_groups[0]["params"]
        clipped.append(len(parameters))
        torch.nn.utils.clip_grad_norm_(parameters, 1e-4)
        return step(optimizer)
    monkeypatch.setattr(torch.optim.AdamW, "step", functools.wraps(step)(clipping) if hooked else clipping)
    expected, memory = run(made("AdamW"), 4), away()
    assert same(run(made("AdamW"), 4, memory), expected) and clipped == 8 * [4]
    assert memory.report().state_bytes > 0


def test_parts_have_all_parameters_once_and_about_the_same_bytes():
    sizes = [5, 1, 1, 1, 2, 2, 1, 1, 1, 1]
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(size, 10)) for size in sizes[:4]]},
                                 {"params": [torch.nn.Parameter(torch.zeros(size, 10)) for size in sizes[4:]]}])
    parts = parts_of(optimizer)
    assert [[len(group) for group in part] for part in parts] == [[1, 0], [3, 1], [0, 4], [0, 1]]  # 5, 5, 5, 1


def test_the_floor_of_a_network_whose_states_weigh_most_goes_down_and_is_held():
    def like_a_language_model():
        network = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False), torch.nn.SiLU())
                                        for _ in range(8)))
        x = torch.randn(4, 256)
        return Program(network, torch.optim.AdamW(network.parameters()), lambda: network(x).pow(2).mean())
    floors = {}
    for states in (False, True):
        memory = minidl.torch.managed(ROOMY, states=states)
        run(like_a_language_model, 2, memory)
        floors[states] = memory.report().floor
    matrices, counters = 8 * 256 * 256 * 4, 8 * 256
    assert floors[False].parts["optimizer state"] == 2 * matrices + counters
    assert floors[True].parts["optimizer state"] == matrices // 4 + counters  # of one matrix of eight
    # parameters, gradients and states were 4; now 2, the state of a part, and what that works on
    assert floors[True].nbytes < 2.6 * matrices < 4 * matrices < floors[False].nbytes
    memory = minidl.torch.managed(floors[True].nbytes)
    torch.manual_seed(0)
    each = like_a_language_model()
    with memory, minidl.torch.Meter(each.network.parameters()) as meter:  # in the end all comes back
        losses = [each.step() for _ in range(4)]
    assert meter.peak <= floors[True].nbytes
    assert same([*losses, *each.state()], run(like_a_language_model, 4))
    with pytest.raises(minidl.torch.BudgetTooSmall, match="the optimizer's state away"):
        run(like_a_language_model, 3, minidl.torch.managed(floors[True].nbytes - 1))


def test_where_there_is_room_no_state_moves_after_the_steps_that_are_not_planned():
    memory = minidl.torch.managed(ROOMY)
    run(made("AdamW"), 3, memory)
    moved = memory.report().state_bytes
    run(made("AdamW"), 5, again := minidl.torch.managed(ROOMY))
    assert moved == again.report().state_bytes > 0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_part_of_the_state_may_stay(share):
    memory = minidl.torch.managed(ROOMY)
    memory.deciding.share = share
    torch.manual_seed(0)
    each = made("AdamW")()
    with memory:
        losses = [each.step() for _ in range(4)]
        assert len(waiting(each.optimizer)) == 8 - 8 * share
    assert same([*losses, *each.state()], run(made("AdamW"), 4))


def test_states_that_are_forgotten_leave_no_host_memory_behind():
    backend = Immediate(ROOMY)
    memory = away(backend=backend)
    run(made("AdamW"), 3, memory)
    assert backend.host.used == 0
    gc.collect()
    states = States(backend, "cpu", on=True)
    each = made("SGD")()
    each.step()
    states.away(each.optimizer)
    assert backend.host.used == 4 * 4 * WIDTH * WIDTH and len(waiting(each.optimizer)) == 4
    each.optimizer.load_state_dict(each.optimizer.state_dict())
    states.away(each.optimizer)
    assert backend.host.used == 4 * 4 * WIDTH * WIDTH
    states.home()
    assert backend.host.used == 0


def test_an_optimizer_that_is_gone_within_the_management_leaves_nothing_behind():
    memory, matrices = away(), 4 * 4 * WIDTH * WIDTH
    with memory:
        for _ in range(3):
            run(made("SGD"), 2)
            gc.collect()
            assert memory.backend.host.used == matrices  # of the last optimizer
    assert memory.backend.host.used == 0 and not on_host


def test_the_state_of_all_optimizers_of_a_parameter_leaves_before_the_first_step():
    torch.manual_seed(0)
    each = made("SGD")()
    other = torch.optim.SGD(each.network.parameters(), 0.1, momentum=0.9)
    each.step()
    other.step()
    with away():
        each.loss()
        assert len(waiting(each.optimizer)) == len(waiting(other)) == 4


@pytest.mark.parametrize("made_before", [True, False])
def test_a_budget_that_the_parameters_alone_exceed_is_refused_before_anything_has_changed(made_before):
    torch.manual_seed(0)
    each = made("SGD")() if made_before else None
    with minidl.torch.managed(3 * 4 * WIDTH * WIDTH):
        each = each or made("SGD")()
        before = [p.detach().clone() for p in each.network.parameters()]
        with pytest.raises(minidl.torch.BudgetTooSmall, match="before the first step .*s 36.0 KiB") as refused:
            each.loss()
    assert refused.value.parts["parameters"] == 4 * 4 * WIDTH * WIDTH
    assert all(p.equal(old) for p, old in zip(each.network.parameters(), before, strict=True))
    assert not each.optimizer.state
    each.step()


def test_a_training_that_is_managed_anew_in_every_step_keeps_its_budget_with_the_same_bits():
    # Two matrices of state a matrix: state that is on the device during the forward pass breaks the floor.
    known = minidl.torch.managed(ROOMY)
    run(made("Adam"), 2, known)
    budget = known.report().floor_bytes

    def trained(memory):
        torch.manual_seed(0)
        of = made("Adam")()
        losses, peaks = [], []
        for _ in range(5):
            with memory or contextlib.nullcontext(), minidl.torch.Meter(
                    [t for t in of.lasting() if t.untyped_storage()._cdata not in on_host]) as meter:
                losses.append(of.step())
            peaks.append(meter.peak)
        return [*losses, *of.state()], max(peaks)
    found, peak = trained(minidl.torch.managed(budget))
    expected, unmanaged = trained(None)
    assert same(found, expected) and peak <= budget < unmanaged


@pytest.mark.parametrize("by_name", [False, True])
def test_state_comes_back_only_when_the_closure_of_a_step_has_returned(by_name):
    def trained(memory, seen):
        torch.manual_seed(0)
        of = made("Adam")()

        def closure():
            of.optimizer.zero_grad()
            seen.append(len(waiting(of.optimizer)))
            loss = of.loss()
            loss.backward()
            return loss
        with memory or contextlib.nullcontext():
            losses = [(of.optimizer.step(closure=closure) if by_name else of.optimizer.step(closure)).detach()
                      for _ in range(4)]
        return [*losses, *of.state()]
    seen, unmanaged = [], []
    assert same(trained(away(), seen), trained(None, unmanaged))
    assert seen == [0, 12, 12, 12] and unmanaged == [0] * 4  # three matrices of state a matrix
