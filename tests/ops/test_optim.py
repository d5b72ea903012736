"""Optimizers: their formulas over several steps, how they group parameters, and their state."""

import re

import numpy as np
import pytest

from minidl import Runtime, optim
from minidl.errors import UserError
from minidl.nn import parameter
from minidl.ops import full
from minidl.ops.update import upload_
from minidl.optim import optimizer as optimizer_module
from minidl.optim.clip import clip_global_norm
from minidl.runtime import current_runtime

START = (1.0, -2.0, 3.0)
GRADS = ((0.5, -1.0, 0.25), (1.5, 0.0, -2.0), (-0.5, 0.125, 1.0))  # one a step


@pytest.fixture(autouse=True)
def runtime():
    with Runtime(device="cpu:virtual", memory_budget="4MiB", poisoned=True) as made:
        yield made


def make_parameter(values=START):
    tensor = parameter((len(values),))
    upload_(tensor, np.asarray(values, np.float32))
    return tensor


def set_grad(tensor, values):
    tensor.grad = full(tensor.shape, 0.0)
    upload_(tensor.grad, np.asarray(values, np.float32))


def take_steps(optimizer, tensor, grads=GRADS):
    for grad in grads:
        set_grad(tensor, grad)
        optimizer.step()
    return tensor.numpy()


def sgd_formula(*, lr, momentum=0.0, weight_decay=0.0):
    p, buf = np.array(START), np.zeros(3)
    for grad in np.array(GRADS):
        buf = momentum * buf + grad + weight_decay * p
        p = p - lr * buf
    return p


@pytest.mark.parametrize("rates", [{"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.2}, {"lr": 0.1, "momentum": 0.9},
                                   {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.2}], ids=str)
def test_sgd_follows_its_formula_from_the_first_step(rates):
    p = make_parameter()
    assert take_steps(optim.SGD([p], **rates), p) == pytest.approx(sgd_formula(**rates), rel=1e-5)  # float32


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_follows_its_formula_and_counts_its_steps_from_one(weight_decay):
    lr, beta1, beta2, eps = 0.1, 0.8, 0.95, 1e-3
    p, m, v = np.array(START), np.zeros(3), np.zeros(3)
    for t, grad in enumerate(np.array(GRADS), start=1):
        g = grad + weight_decay * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    ours = make_parameter()
    adam = optim.Adam([ours], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
    assert take_steps(adam, ours) == pytest.approx(p, rel=1e-5)  # float32
    state = adam.state_dict()
    assert state["m.0"] == pytest.approx(m, rel=1e-5)
    assert state["v.0"] == pytest.approx(v, rel=1e-5)
    assert state["step"] == 3


def test_adamw_follows_its_formula_and_decay_does_not_pass_through_the_moments():
    lr, beta1, beta2, eps, decay = 0.1, 0.8, 0.95, 1e-3, 0.2
    p, m, v = np.array(START), np.zeros(3), np.zeros(3)
    for t, g in enumerate(np.array(GRADS), start=1):
        p = p * (1 - lr * decay)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    ours = make_parameter()
    adamw = optim.AdamW([ours], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    assert take_steps(adamw, ours) == pytest.approx(p, rel=1e-5)  # float32
    assert adamw.state_dict()["m.0"] == pytest.approx(m, rel=1e-5)


def test_decay_can_be_kept_from_some_parameters():
    weights, bias = [make_parameter() for _ in range(2)], make_parameter()
    adamw = optim.AdamW([weights[0], bias, weights[1]], lr=0.1, weight_decay=0.5, decays=lambda p: p is not bias)
    for p in (*weights, bias):
        set_grad(p, (0.0, 0.0, 0.0))
    adamw.step()
    assert bias.numpy().tolist() == list(START)
    for p in weights:
        assert p.numpy() == pytest.approx(np.array(START) * 0.95, rel=1e-6)  # 1 - 0.1 * 0.5; no gradient, no step


def test_the_learning_rate_may_be_changed_between_steps():
    p = make_parameter((1.0,))
    sgd = optim.SGD([p], lr=0.5)
    set_grad(p, (1.0,))
    sgd.step()
    sgd.lr = 0.25
    sgd.step()
    assert p.numpy().tolist() == [0.25]  # 1 - 0.5 - 0.25


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.1, 0.9), lambda ps: optim.Adam(ps)])
def test_a_parameter_without_gradient_keeps_its_value_and_state(make):
    idle, busy = make_parameter(), make_parameter()
    optimizer = make([idle, busy])
    take_steps(optimizer, busy, GRADS[:1])
    assert idle.numpy().tolist() == list(START)
    assert busy.numpy().tolist() != list(START)
    for name, array in optimizer.state_dict().items():
        if name.endswith(".0"):
            assert not array.any(), name
        elif name != "step":
            assert array.any(), name


def test_zero_grad_forgets_every_gradient():
    p = make_parameter()
    set_grad(p, START)
    optim.SGD([p], 0.1).zero_grad()
    assert p.grad is None


def recorded_updates(monkeypatch, optimizer):
    """The parameters of each update call of one step, as positions in the optimizer's list."""
    calls = []

    def record(op, *tensors, **attrs):
        positions = {id(p): i for i, p in enumerate(optimizer.parameters)}
        calls.append([positions[id(t)] for t in tensors if id(t) in positions])
        group = len(calls[-1])
        assert [id(t) for t in tensors[-group:]] == [id(optimizer.parameters[i].grad) for i in calls[-1]]
        assert len(tensors) == group * (2 + len(optimizer._states))
        for k, state in enumerate(optimizer._states.values(), start=1):
            assert [id(t) for t in tensors[k * group:(k + 1) * group]] == [id(state[i]) for i in calls[-1]]
        return ()

    monkeypatch.setattr(optimizer_module, "apply_all", record)
    optimizer.step()
    return calls


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.1), lambda ps: optim.SGD(ps, 0.1, 0.9),
                                  lambda ps: optim.Adam(ps)], ids=["sgd", "momentum", "adam"])
def test_updates_go_in_chunks_that_keep_the_order_and_the_limit(monkeypatch, make):
    # A limit of 64 bytes is 16 floats: 8 + 8 fit exactly, 17 is over the limit alone, 15 + 2 would be.
    sizes = [8, 8, 1, 17, 15, 2, 3]
    monkeypatch.setattr(optimizer_module, "CHUNK_BYTES", 64)
    tensors = [make_parameter([0.0] * n) for n in sizes]
    optimizer = make(tensors)
    for tensor in tensors:
        tensor.grad = full(tensor.shape, 1.0)
    assert recorded_updates(monkeypatch, optimizer) == [[0, 1], [2], [3], [4], [5, 6]]
    tensors[1].grad = tensors[3].grad = None
    assert recorded_updates(monkeypatch, optimizer) == [[0, 2], [4], [5, 6]]


def test_a_chunk_is_at_most_8_mebibytes_of_parameters():
    assert optim.CHUNK_BYTES == 8 * 1024 * 1024


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.1), lambda ps: optim.SGD(ps, 0.1, 0.9),
                                  lambda ps: optim.Adam(ps)], ids=["sgd", "momentum", "adam"])
def test_many_parameters_are_updated_in_the_memory_that_the_largest_needs(make):
    """Twenty parameters of 256 bytes and one of 1,024, with states and gradients, in four times the latter's."""
    def train(budget, policy):
        with Runtime("cpu", policy=policy, memory_budget=budget, host_memory=1 << 20) as runtime:
            tensors = [make_parameter([float(i)] * n) for i, n in enumerate([64] * 10 + [256] + [64] * 10)]
            optimizer = make(tensors)
            for _ in range(2):
                with runtime.iteration():
                    for tensor in tensors:
                        tensor.grad = full(tensor.shape, 0.5)
                    optimizer.step()
            needs = runtime.dry_run(optimizer.step).largest_op_bytes
            return needs, [tensor.numpy().tobytes() for tensor in tensors]
    needs, whole = train(1 << 20, "none")
    assert needs in (2048, 3072, 4096)
    assert train(needs, "passive") == (needs, whole)


def test_the_result_does_not_depend_on_the_chunks(monkeypatch):
    def train():
        tensors = [make_parameter([float(i)] * n) for i, n in enumerate((8, 3, 20))]
        optimizer = optim.Adam(tensors)
        for tensor in tensors:
            tensor.grad = full(tensor.shape, 0.5)
        optimizer.step()
        return [tensor.numpy().tobytes() for tensor in tensors]
    whole = train()
    monkeypatch.setattr(optimizer_module, "CHUNK_BYTES", 16)
    assert train() == whole


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.1), lambda ps: optim.SGD(ps, 0.1, 0.9),
                                  lambda ps: optim.Adam(ps)], ids=["sgd", "momentum", "adam"])
def test_training_goes_on_from_a_saved_state_as_if_it_had_not_stopped(make):
    through = make_parameter()
    optimizer = make([through])
    middle = take_steps(optimizer, through, GRADS[:2])
    state = optimizer.state_dict()
    end = take_steps(optimizer, through, GRADS[2:])
    resumed = make_parameter(middle)
    second = make([resumed])
    second.load_state_dict(state)
    for array in state.values():
        array[...] = 7  # it was copied
    assert take_steps(second, resumed, GRADS[2:]).tobytes() == end.tobytes()


def test_a_state_that_does_not_fit_is_an_error_and_nothing_is_written():
    optimizer = optim.Adam([make_parameter()])
    state = optimizer.state_dict()
    assert set(state) == {"m.0", "v.0", "step"}
    with pytest.raises(UserError, match=re.escape("v.0 is [2] and must be [3]")):
        optimizer.load_state_dict(state | {"m.0": np.ones(3), "v.0": np.ones(2), "step": 4})
    with pytest.raises(UserError, match=re.escape("1 names are missing or unexpected, the first is m.1")):
        optimizer.load_state_dict(state | {"m.1": np.ones(3)})
    with pytest.raises(UserError, match="step is missing"):
        optimizer.load_state_dict({name: state[name] for name in ("m.0", "v.0")})
    assert not any(array.any() for array in optimizer.state_dict().values())


def test_adams_step_is_counted_in_the_runtime_where_a_dry_run_can_take_it_back():
    tensors = [make_parameter(), make_parameter()]
    first, second = optim.Adam(tensors[:1]), optim.Adam(tensors[1:])
    counters = current_runtime().counters
    before = dict(counters)
    take_steps(first, tensors[0])
    assert (first.state_dict()["step"], second.state_dict()["step"]) == (3, 0)
    counters.update(before)
    assert first.state_dict()["step"] == 0


# One parameter has a gradient at every step, the other only from the third on, and not at the fifth.
NOW_AND_THEN = ((1.0, None), (0.5, None), (-1.0, 2.0), (0.25, -0.5), (2.0, None), (1.0, 1.0))


def adam_of_each(start, grads, *, lr):
    """Adam with a number of steps for each parameter, in float64: a step without a gradient is none."""
    values = []
    for position, value in enumerate(start):
        m = v = t = 0.0
        for g in (row[position] for row in grads if row[position] is not None):
            m, v, t = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, t + 1
            value -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        values.append(value)
    return values


def take_sparse_steps(optimizer, tensors, grads):
    for row in grads:
        for tensor, grad in zip(tensors, row, strict=True):
            tensor.grad = None
            if grad is not None:
                set_grad(tensor, (grad,))
        optimizer.step()
    return [tensor.numpy()[0] for tensor in tensors]


def test_adam_counts_the_steps_of_each_parameter_from_its_first_gradient_on():
    tensors = [make_parameter((1.0,)), make_parameter((-1.0,))]
    adam = optim.Adam(tensors, lr=0.1)
    found = take_sparse_steps(adam, tensors, NOW_AND_THEN)
    assert found == pytest.approx(adam_of_each((1.0, -1.0), NOW_AND_THEN, lr=0.1), rel=1e-5)  # float32
    assert adam.state_dict()["step"].tolist() == [6, 3]


def test_counts_of_steps_are_saved_and_one_number_of_an_older_state_stands_for_all():
    tensors = [make_parameter((1.0,)), make_parameter((-1.0,))]
    adam = optim.Adam(tensors, lr=0.1)
    take_sparse_steps(adam, tensors, NOW_AND_THEN[:4])
    state, values = adam.state_dict(), [tensor.numpy() for tensor in tensors]
    end = take_sparse_steps(adam, tensors, NOW_AND_THEN[4:])
    resumed = [make_parameter(value) for value in values]
    second = optim.Adam(resumed, lr=0.1)
    second.load_state_dict(state)
    assert take_sparse_steps(second, resumed, NOW_AND_THEN[4:]) == end
    second.load_state_dict(state | {"step": np.asarray(7)})
    assert second.state_dict()["step"].tolist() == [7, 7]
    with pytest.raises(UserError, match=re.escape("step is [3] and must be [2]")):
        second.load_state_dict(state | {"step": np.ones(3, int)})


def test_a_frozen_parameter_stays_as_it_is_until_it_is_thawed():
    p, frozen = make_parameter((1.0,)), make_parameter((2.0,))
    frozen.requires_grad = False
    sgd = optim.SGD([p, frozen], lr=0.5)
    (p * frozen).sum().backward()
    sgd.step()
    assert (p.item(), frozen.item()) == (0.0, 2.0)
    frozen.requires_grad = True
    sgd.zero_grad()
    (p * frozen + frozen).sum().backward()
    sgd.step()
    assert (p.item(), frozen.item()) == (-1.0, 1.5)


def test_what_an_optimizer_cannot_use_is_an_error():
    p = make_parameter()
    for params, rates, message in [([], {}, "no parameters"), ([p, p], {}, "more than once"),
                                   ([p * 1.0], {}, "the result of an operation"),
                                   ([p], {"lr": -1.0}, "lr must not be negative"),
                                   ([p], {"weight_decay": -1.0}, "weight_decay must not be negative"),
                                   ([p], {"momentum": -0.5}, "momentum must not be negative")]:
        with pytest.raises(UserError, match=message):
            optim.SGD(params, **{"lr": 0.1, **rates})
    with pytest.raises(UserError, match=re.escape("betas must be in [0, 1), not (0.9, 1.0)")):
        optim.Adam([p], betas=(0.9, 1.0))


@pytest.mark.parametrize(("make", "change", "message"), [
    (lambda p: optim.SGD(p, 0.1), {"momentum": 0.9}, "SGD was made without a momentum, and so without buffers for 0.9"),
    (lambda p: optim.Adam(p), {"amsgrad": True}, "Adam was made without amsgrad"),
    (lambda p: optim.SGD(p, 0.1, momentum=0.9), {"nesterov": True, "momentum": 0.0}, "nesterov needs a momentum"),
    (lambda p: optim.RMSprop(p), {"momentum": 0.9}, "RMSprop was made without momentum"),
    (lambda p: optim.RMSprop(p), {"centered": True}, "RMSprop was made without centered"),
    (lambda p: optim.SGD(p, 0.1), {"params": []}, "the groups list 0 parameters, which are not the 1 of the optimizer"),
])
def test_what_an_optimizer_was_not_made_for_is_an_error_of_the_step_and_is_not_ignored(make, change, message):
    p = make_parameter()
    optimizer = make([p])
    (p * p).sum().backward()
    before = p.numpy()
    kept = dict(optimizer.param_groups[0])
    optimizer.param_groups[0].update(change)
    with pytest.raises(UserError, match=message):
        optimizer.step()
    assert (p.numpy() == before).all()
    optimizer.param_groups[0].clear()
    optimizer.param_groups[0].update(kept)
    optimizer.step()
    assert (p.numpy() != before).any()
    optimizer.param_groups[0]["params"].append(make_parameter())
    with pytest.raises(UserError, match="the groups list 2 parameters, which are not the 1"):
        optimizer.step()
    if change.keys() <= optimizer.defaults.keys():
        with pytest.raises(UserError, match=message):
            optimizer.add_param_group({"params": [make_parameter()], **change})


def test_on_the_host_a_rate_that_composes_the_update_is_refused_after_the_start():
    with Runtime("cpu", memory_budget="1MiB", host_memory="1MiB", host_update=True):
        p = make_parameter()
        for optimizer in (optim.SGD([p], 0.1, momentum=0.9), optim.Adam([p])):
            (p * p).sum().backward()
            optimizer.param_groups[0]["maximize"] = True
            with pytest.raises(UserError, match="with host_update maximize must be an argument of the constructor"):
                optimizer.step()


def test_clipping_leaves_a_gradient_that_the_program_holds_as_it_was():
    with Runtime("cpu", memory_budget=1 << 20):
        w = parameter((2,))
        w.fill_(2.0)
        (w * w).sum().backward()
        held = w.grad
        clip_global_norm([w], 1.0)
        assert held.numpy().tolist() == [4.0, 4.0]
        np.testing.assert_allclose(w.grad.numpy(), [0.5**0.5] * 2, rtol=1e-6)
