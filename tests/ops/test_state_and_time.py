"""The state after a caught error follows from the program alone: steps, copies, states, and places for numbers."""

import copy
import os
import subprocess
import sys

import numpy as np
import pytest

import minidl
from bench.support.kernel_cases import CASES, OPS
from minidl import OutOfMemory, Runtime, ShapeError, UserError, nn, optim
from minidl.dispatch import apply_all
from minidl.errors import WrongKind
from minidl.nn import functional as F


def pair(size=4):
    return nn.Parameter(minidl.zeros(size)), nn.Parameter(minidl.ones(size))


@pytest.mark.parametrize("policy", ["none", "passive", "recompute", "auto"])
def test_a_step_that_runs_out_of_memory_has_not_stepped(policy):
    def first_update(budget, fails):
        with Runtime("cpu", memory_budget=budget, policy=policy):
            big, small = (nn.Parameter(minidl.zeros(n)) for n in (16384, 4))
            adam = optim.Adam([big, small], lr=0.1)
            (small * 3.0).sum().backward()
            if fails:
                (big[:64] * 1.0).sum().backward()
                with pytest.raises(OutOfMemory):
                    adam.step()
                assert adam.state_dict()["step"].tolist() == [0, 0] and small.tolist() == [0.0] * 4
                big.grad = None
            adam.step()
            return small.tolist(), adam.state_dict()["step"].tolist()
    if policy == "none":
        pytest.importorskip("numpy")
        assert first_update("8MiB", False)[1] == [0, 1]
    else:
        assert first_update("224KiB", True) == first_update("8MiB", False)


def taken(p, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()


MAKERS = {"SGD": lambda p: optim.SGD([p], lr=0.1, momentum=0.9), "Adam": lambda p: optim.Adam([p], lr=0.1),
          "AdamW": lambda p: optim.AdamW([p], lr=0.1), "Adadelta": lambda p: optim.Adadelta([p]),
          "RMSprop": lambda p: optim.RMSprop([p]), "Adagrad": lambda p: optim.Adagrad([p]),
          "nesterov": lambda p: optim.SGD([p], lr=0.1, momentum=0.9, nesterov=True),
          "amsgrad": lambda p: optim.Adam([p], lr=0.1, amsgrad=True)}


@pytest.mark.parametrize("name", MAKERS)
def test_a_copy_of_a_model_and_its_optimizer_shares_nothing(name):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        p = nn.Parameter(minidl.ones(2))
        optimizer = MAKERS[name](p)
        taken(p, optimizer, 1)
        q, other = copy.deepcopy((p, optimizer))
        assert other.parameters[0] is q and q is not p
        taken(q, other, 3)
        taken(p, optimizer, 1)
        alone = nn.Parameter(minidl.ones(2))
        lonely = MAKERS[name](alone)
        taken(alone, lonely, 2)
        assert p.tolist() == alone.tolist()
        taken(alone, lonely, 2)
        assert q.tolist() == alone.tolist()


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_that_is_refused_leaves_everything_as_it_was(name):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        p = nn.Parameter(minidl.ones(2))
        optimizer = MAKERS[name](p)
        taken(p, optimizer, 2)
        before = optimizer.state_dict()
        for key in before:
            wrong = [np.zeros(7), np.array(["a", "b"])] + ([-1, 0.5, np.nan, np.array([[1]])] if key == "step" else [])
            for value in wrong:
                with pytest.raises(UserError):
                    optimizer.load_state_dict({**{k: v * 0 for k, v in before.items()}, key: value})
        assert all((optimizer.state_dict()[key] == before[key]).all() for key in before)


def test_a_schedule_refuses_a_state_that_is_none_and_stays_where_it_was():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        optimizer = optim.SGD([nn.Parameter(minidl.ones(2))], lr=0.5)
        schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        schedule.step()
        for state in ({}, {"last_epoch": -1, "base_lrs": [1.0]}, {"last_epoch": 2, "base_lrs": [1.0, 2.0]},
                      {"last_epoch": 1.5, "base_lrs": [1.0]}, {"last_epoch": 3, "base_lrs": ["a"]}):
            with pytest.raises(UserError, match="the state does not fit StepLR of 1 groups"):
                schedule.load_state_dict(state)
        state = {"last_epoch": 1, "base_lrs": [0.5], "_last_lr": [0.25]}
        assert schedule.state_dict() == state and schedule.get_last_lr() == [0.25]
        with pytest.raises(UserError, match="the state does not fit StepLR of 1 groups"):
            schedule.load_state_dict({**state, "_last_lr": [0.25, 0.25]})
        schedule.load_state_dict({"last_epoch": 3, "base_lrs": [1.0]})  # of earlier versions
        assert schedule.get_last_lr() == [0.125]
        schedule.load_state_dict({**state, "_last_lr": [0.01]})  # a rate that was set by hand
        assert schedule.get_last_lr() == [0.01]


def test_a_gradient_is_checked_where_it_is_assigned():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        p = nn.Parameter(minidl.ones(2, 2))
        for gradient, error in ((minidl.ones(3), ShapeError), (minidl.ones(2, 2).double(), ShapeError),
                                (1.0, WrongKind), ("x", TypeError), (np.ones((2, 2), "f4"), TypeError)):
            with pytest.raises(error, match="a gradient (of|is)"):
                p.grad = gradient
            assert p.grad is None
        p.grad = minidl.ones(2, 2)
        p.grad = None


def test_a_group_that_is_added_takes_its_first_step_then():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        first, second = pair(1)
        adam = optim.Adam([first], lr=0.1)
        taken(first, adam, 2)
        adam.add_param_group({"params": [second], "lr": 0.5})
        assert adam.state_dict()["step"].tolist() == [2, 0]
        (second * 3.0).sum().backward()
        adam.zero_grad, _ = adam.zero_grad, adam.step()
        assert adam.state_dict()["step"].tolist()[1] == 1
        np.testing.assert_allclose(second.tolist(), [0.5], rtol=1e-6)  # the first step of Adam is of length lr
        with pytest.raises(UserError, match="the same parameter more than once"):
            adam.add_param_group({"params": [first]})
        with pytest.raises(UserError, match=r"not one tensor: use \[tensor\]"):
            optim.SGD(first, lr=0.1)


# A tensor in the place of a number ------------------------------------------------------------------------------------
def numeric(case):
    return [name for name, value in case.attrs.items() if isinstance(value, float) and not isinstance(value, bool)]


@pytest.mark.parametrize("name", sorted({case.name for case in CASES if numeric(case)}))
def test_every_operation_refuses_a_tensor_in_the_place_of_a_number(name):
    case = next(case for case in CASES if case.name == name and numeric(case))
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none") as runtime:
        tensors = [runtime.tensor(array) for array in case.inputs(np.dtype("f4"))]
        for attribute in numeric(case):
            attrs = {**case.attrs, attribute: minidl.tensor(0.5)}
            with pytest.raises(WrongKind, match=f"{name} takes a number for {attribute}, not a tensor"):
                apply_all(OPS[name], *tensors, **attrs)


NUMBERS = {
    "dropout": lambda x, v: F.dropout(x, v), "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "full": lambda x, v: minidl.ops.full((2,), v), "layer_norm": lambda x, v: F.layer_norm(x, 2, eps=v),
    "dropout of attention": lambda x, v: F.scaled_dot_product_attention(x, x, x, dropout_p=v),
    "scale": lambda x, v: minidl.ops.scale(x, v),
    "clip_grad_norm_": lambda x, v: nn.utils.clip_grad_norm_([x], v),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_function_that_reads_a_number_refuses_a_tensor_and_nothing_hangs(name):
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        x, v = nn.Parameter(minidl.ones(2, 2)), minidl.tensor(0.5, requires_grad=True)
        x.grad = minidl.ones(2, 2)
        with pytest.raises(UserError):
            NUMBERS[name](x, v)
        assert v.tolist() == 0.5


def test_a_value_that_is_a_tensor_keeps_its_gradient():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        for make in (lambda v: minidl.full((2, 2), v), lambda v: minidl.full_like(minidl.ones(4), v),
                     lambda v: minidl.zeros(4).fill_(v),
                     lambda v: minidl.zeros(4).masked_fill(minidl.ones(4).bool(), v)):
            v = minidl.tensor(0.5, requires_grad=True)
            (make(v) * 2.0).sum().backward()
            assert v.grad.item() == 8.0


# What is given to functions -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("use", "message"), [
    (lambda: minidl.tensor(None), "an array, not None"),
    (lambda: minidl.full((1,), 300, dtype=minidl.uint8), "a value of 300 does not fit uint8"),
    (lambda: minidl.arange(0, 5, 0), "cannot count from 0 to 5 in steps of 0"),
    (lambda: minidl.randint(5, 2, (2,)), "there is no integer from 5 up to but not including 2"),
    (lambda: nn.BatchNorm1d(2, momentum=None), "BatchNorm1d: momentum must be a number, not None"),
    (lambda: nn.Conv2d(1, 1, 3, padding=(1, 1, 1)), r"one or two integers, not \(1, 1, 1\)"),
    (lambda: minidl.multinomial(minidl.tensor([0.0, 1.0]), 2), "cannot draw 2 from a row with 1 positive weights"),
    (lambda: minidl.multinomial(minidl.tensor([0.0, -1.0]), 1), "weights must be finite and not negative"),
    (lambda: minidl.multinomial(minidl.tensor([float("nan"), 1.0]), 1), "weights must be finite and not negative"),
    (lambda: minidl.tensor([1, 2], requires_grad=True), "only floating-point numbers have gradients"),
    (lambda: F.scaled_dot_product_attention(*[minidl.ones(1, 1, 2, 2)] * 3, minidl.ones(2, 2), is_causal=True),
     "a mask or is_causal, not both"),
    (lambda: format(minidl.ones(2), ".2f"), "a tensor of shape .2. has no format"),
    (lambda: minidl.ones(2).to(3.5), "takes a device, a dtype or a tensor, not a float"),
    (lambda: nn.Linear(2, 2).to(minidl.int64), "parameters are floating-point numbers, not int64"),
    (lambda: minidl.autograd.grad(minidl.ones(2, requires_grad=True).sum(), minidl.ones(2, requires_grad=True)),
     "no output was computed from"),
])
def test_what_makes_no_sense_is_refused_with_the_numbers_in_it(use, message):
    with Runtime("cpu", memory_budget="1MiB", policy="none"), pytest.raises(UserError, match=message):
        use()


def test_draws_and_values_that_make_sense_are_taken():
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        assert minidl.multinomial(minidl.tensor([0.0, 1.0, 0.0]), 1).tolist() == [1]
        assert minidl.tensor([2, 0], dtype=minidl.bool).tolist() == [True, False]
        assert f"{minidl.tensor(1.5):.2f} {minidl.tensor(3):>4}" == "1.50    3"
        assert minidl.randint(3, (4,)).shape == (4,)
        assert nn.Linear(2, 3)(minidl.ones(2)).shape == (3,)
        x = minidl.zeros(4)[1:3]
        assert x.requires_grad_(False) is x and not x.requires_grad


def test_a_model_in_float64_is_as_exact_as_that():
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        names = [id(p) for p in model.parameters()]
        assert model.double() is model and [id(p) for p in model.parameters()] == names
        x = minidl.tensor(np.linspace(-1, 1, 6).reshape(2, 3))
        y = model(x)
        state = model.state_dict()
        expected = np.tanh(np.linspace(-1, 1, 6).reshape(2, 3) @ state["0.weight"].T + state["0.bias"])
        expected = expected @ state["2.weight"].T + state["2.bias"]
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-14)
        y.sum().backward()
        assert all(p.grad.dtype is minidl.float64 for p in model.parameters())


def test_hooks_and_grad_leave_the_gradients_of_leaves_alone_or_change_them():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        w = minidl.tensor([1.0, 2.0], requires_grad=True)
        y = w * w
        dy, dw = minidl.autograd.grad((y * 3.0).sum(), [y, w])
        assert (dy.tolist(), dw.tolist(), w.grad) == ([3.0, 3.0], [6.0, 12.0], None)
        handle = w.register_hook(lambda gradient: gradient * 10.0)
        (w * 2.0).sum().backward()
        handle.remove()
        (w * 2.0).sum().backward()
        assert w.grad.tolist() == [22.0, 22.0]
        with minidl.no_grad():
            assert not (w * 2.0).requires_grad
            with minidl.enable_grad():
                assert (w * 2.0).requires_grad
        with minidl.set_grad_enabled(False):
            assert not minidl.is_grad_enabled()
        assert minidl.is_grad_enabled()

        @minidl.set_grad_enabled(False)
        def without(x):
            return (x * 2.0).requires_grad
        assert minidl.is_grad_enabled() and not without(w) and minidl.is_grad_enabled()


def test_gradients_that_hooks_keep_stay_what_they_were_and_no_hook_takes_the_place_of_another():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none", poisoned=True) as runtime:
        x = minidl.tensor([1.0, 2.0], requires_grad=True)
        y, seen, made = x * 2.0, [], []
        y.register_hook(seen.append)
        y.register_hook(lambda gradient: made.append(gradient * 10.0) or made[0])
        x.register_hook(seen.append)
        (y * y).sum().backward()
        (x * 1.0).sum().backward()
        assert [g.tolist() for g in seen] == [[4.0, 8.0], [80.0, 160.0], [1.0, 1.0]]
        assert made[0].tolist() == [40.0, 80.0] and x.grad.tolist() == [81.0, 161.0]
        runtime.check()


def test_a_mode_of_gradients_may_be_entered_again_and_is_a_decorator_with_and_without_brackets():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        w = minidl.ones(1, requires_grad=True)

        def with_gradient():
            return (w * 2.0).requires_grad
        for mode, inside in ((minidl.no_grad(), False), (minidl.enable_grad(), True), (minidl.inference_mode(), False),
                             (minidl.inference_mode(False), True)):
            with minidl.set_grad_enabled(not inside):
                for _ in range(2):
                    with mode, mode:
                        assert with_gradient() is inside
                    assert with_gradient() is not inside
                assert mode(with_gradient)() is inside and with_gradient() is not inside
        assert not minidl.no_grad(with_gradient)() and not minidl.inference_mode(with_gradient)()
        with minidl.no_grad():
            assert minidl.enable_grad(with_gradient)() and not with_gradient()
        off = minidl.set_grad_enabled(False)
        for _ in range(2):
            with off:
                assert not with_gradient()
            assert with_gradient()


def test_a_decorated_generator_runs_in_its_mode_and_its_caller_does_not():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        w, closed = minidl.ones(1, requires_grad=True), []

        @minidl.no_grad()
        def generator():
            try:
                given = yield (w * 2.0).requires_grad
                try:
                    yield given, (w * 2.0).requires_grad
                except KeyError:
                    yield "caught", (w * 2.0).requires_grad
                return "end"
            finally:
                closed.append((w * 2.0).requires_grad)
        steps = generator()
        assert next(steps) is False and (w * 2.0).requires_grad
        assert steps.send(3) == (3, False) and (w * 2.0).requires_grad
        assert steps.throw(KeyError()) == ("caught", False) and (w * 2.0).requires_grad
        with pytest.raises(StopIteration, match="end"):
            next(steps)
        steps = generator()
        next(steps)
        steps.close()
        assert closed == [False, False] and (w * 2.0).requires_grad


def test_a_program_may_ask_for_a_gpu_before_it_makes_a_runtime():
    assert not minidl.cuda.is_available() and minidl.cuda.device_count() == 0
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        assert not minidl.cuda.is_available()
    with Runtime("sim:p100", memory_budget="1MiB"):
        assert minidl.cuda.device_count() == int(minidl.cuda.is_available())


# Two optimizers -------------------------------------------------------------------------------------------------------
def gan(library, steps=3):
    """The losses of a standard GAN step: the discriminator's optimizer steps between ``fake`` and its gradient."""
    weights = np.random.default_rng(3).standard_normal
    make, judge = library.nn.Linear(2, 2), library.nn.Linear(2, 1)
    with library.no_grad():
        for p in (make.weight, make.bias, judge.weight, judge.bias):
            p.copy_(library.tensor(np.asarray(weights(tuple(p.shape)), "f4")))
    og, od = library.optim.Adam(make.parameters(), lr=0.05), library.optim.Adam(judge.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        noise = library.tensor(np.full((3, 2), 0.5 + step, "f4"))
        fake = make(noise).tanh()
        od.zero_grad()
        worth = judge(noise).sigmoid().mean() - judge(fake.detach()).sigmoid().mean()
        worth.backward()
        od.step()
        og.zero_grad()
        loss = judge(fake).sigmoid().mean()
        loss.backward()
        og.step()
        losses += [worth.item(), loss.item()]
    return losses


@pytest.mark.parametrize("policy", ["none", "passive", "recompute", "lru", "auto"])
def test_a_gan_needs_no_marks_and_has_the_same_bits_under_every_policy(policy):
    def run(policy, budget):
        with Runtime("cpu:virtual", memory_budget=budget, policy=policy, poisoned=True) as runtime:
            losses = gan(minidl)
            runtime.check()
            assert runtime.tracker.iteration <= 4
            return losses
    assert run(policy, "1MiB") == run("none", "1MiB")
    if policy not in ("none",):
        assert run(policy, "8KiB") == run("none", "1MiB")


def test_a_gan_has_pytorchs_losses():
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        ours = gan(minidl)
    np.testing.assert_allclose(ours, gan(torch), rtol=1e-5)


def test_a_result_that_is_held_and_never_differentiated_keeps_no_iteration_for_ever():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none") as runtime:
        w = nn.Parameter(minidl.ones(2))
        optimizer = optim.SGD([w], lr=0.1)
        for _ in range(6):
            beside = w * w
            loss = (w * w).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert beside.requires_grad and runtime.tracker.iteration == 2  # two steps each, the last one under way


def test_a_program_whose_gradients_are_all_taken_has_an_iteration_a_step():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none") as runtime:
        w = nn.Parameter(minidl.ones(2))
        optimizer = optim.SGD([w], lr=0.1)
        for _ in range(6):
            outputs = w * 3.0  # nothing is saved by any call
            loss = (outputs + 1.0).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert runtime.tracker.iteration == 5 and outputs.shape == (2,)


@pytest.mark.parametrize(("before", "layer"), [("sys.modules['torch'] = types.ModuleType('torch')", "workqueue"),
                                               ("pass", None)])
def test_beside_pytorch_the_threads_of_kernels_sleep_while_they_wait(before, layer):
    program = (f"import os, sys, types; {before}; import minidl; "
               "print(os.environ.get('NUMBA_THREADING_LAYER'), os.environ['OMP_WAIT_POLICY'])")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_THREADING", "OMP_"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=plain, check=True)
    assert done.stdout.split() == [str(layer), "passive"]
