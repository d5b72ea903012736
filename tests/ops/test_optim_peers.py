"""Optimizers against PyTorch's of the same name, and the order of arguments of all names that both have."""

import inspect

import numpy as np
import pytest

import minidl
import minidl.nn.functional
from minidl import Runtime, nn, optim

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

KINDS = {
    "SGD nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD maximize": ("SGD", {"lr": 0.1, "maximize": True}),
    "SGD maximize momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "maximize": True, "weight_decay": 0.1}),
    "SGD fused": ("SGD", {"lr": 0.1, "fused": True}),
    "SGD": ("SGD", {}),
    "RMSprop": ("RMSprop", {}), "RMSprop momentum": ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1}),
    "RMSprop centered": ("RMSprop", {"centered": True, "alpha": 0.9, "eps": 1e-3}),
    "Adagrad": ("Adagrad", {"weight_decay": 0.1}),
    "Adam amsgrad": ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    "Adam maximize": ("Adam", {"maximize": True}),
    "AdamW amsgrad": ("AdamW", {"amsgrad": True, "lr": 0.05}),
    "AdamW maximize": ("AdamW", {"maximize": True, "weight_decay": 0.2}),
    "AdamW foreach": ("AdamW", {"foreach": False}),
}
START = [np.array([[1.0, -2.0], [0.5, 3.0]], "f4"), np.array([0.25, -0.75], "f4")]


def trained(library, name, options):
    """The parameters after four steps; the second of them has a gradient in the last two alone."""
    parameters = [library.nn.Parameter(library.tensor(array)) for array in START]
    optimizer = getattr(library.optim, name)(parameters, **options)
    for step in range(4):
        optimizer.zero_grad()
        loss = (parameters[0] * parameters[0] * (step + 0.5)).sum()
        if step >= 2:
            loss = loss + (parameters[1] ** 3).sum()
        loss.backward()
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_takes_the_steps_of_pytorchs(kind):
    name, options = KINDS[kind]
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        ours = trained(minidl, name, options)
    for found, right in zip(ours, trained(torch, name, options), strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["SGD nesterov", "RMSprop momentum", "Adam amsgrad"])
def test_a_step_that_is_composed_has_the_same_bits_under_every_policy(kind):
    name, options = KINDS[kind]

    def run(policy):
        with Runtime("cpu:virtual", memory_budget="16KiB", policy=policy, poisoned=True) as runtime:
            found = [p.tobytes() for p in trained(minidl, name, options)]
            runtime.check()
            return found
    assert run("none") == run("passive") == run("recompute") == run("auto")


CHANGES = {
    "nesterov": ("SGD", {"momentum": 0.9}, {"nesterov": True}), "SGD maximize": ("SGD", {}, {"maximize": True}),
    "maximize with momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}, {"maximize": True, "momentum": 0.5}),
    "Adam maximize": ("Adam", {}, {"maximize": True}), "AdamW maximize": ("AdamW", {}, {"maximize": True}),
    "Adam betas": ("Adam", {}, {"betas": (0.5, 0.9)}),
    "RMSprop maximize": ("RMSprop", {"momentum": 0.9}, {"maximize": True, "momentum": 0.5}),
}


def changed(library, name, options, changes):
    """The parameters of two groups after six steps, before the fourth of which one group has changed."""
    ps = [library.nn.Parameter(library.tensor(array)) for array in START]
    optimizer = getattr(library.optim, name)([{"params": [p]} for p in ps], lr=0.1, **options)
    for step in range(6):
        if step == 3:
            optimizer.param_groups[1].update(changes)
        optimizer.zero_grad()
        ((ps[0] * ps[0]).sum() + ((ps[1] - 0.3) ** 2).sum()).backward()
        optimizer.step()
    return [p.detach().numpy() for p in ps]


@pytest.mark.parametrize("change", CHANGES)
def test_a_rate_that_is_changed_between_steps_counts_from_the_next_one(change):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        ours = changed(minidl, *CHANGES[change])
        assert any((a != b).any() for a, b in zip(ours, changed(minidl, *CHANGES[change][:2], {}), strict=True))
    for found, right in zip(ours, changed(torch, *CHANGES[change]), strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-6)


# Schedulers -----------------------------------------------------------------------------------------------------------
def warm_up(epoch):
    return min(1.0, (epoch + 1) / 3)


SCHEDULES = {
    "step": lambda S, o: [S.StepLR(o, 2, 0.3)],
    "cosine": lambda S, o: [S.CosineAnnealingLR(o, 4, 0.01)],
    "lambda": lambda S, o: [S.LambdaLR(o, warm_up)],
    "functions": lambda S, o: [S.LambdaLR(o, [warm_up, lambda epoch: 0.7 ** epoch])],
    "lambda and step": lambda S, o: [S.LambdaLR(o, warm_up), S.StepLR(o, 2, 0.3)],
    "step and cosine": lambda S, o: [S.StepLR(o, 2, 0.3), S.CosineAnnealingLR(o, 4)],
}


def rates(library, name, by_hand):
    """The rates of two groups in 14 epochs. In the fifth, one is set by hand; in the seventh a group is added."""
    ps = [library.ones(1, requires_grad=True) for _ in range(3)]
    optimizer = library.optim.SGD([{"params": [ps[0]], "lr": 0.7}, {"params": [ps[1]]}], lr=0.3)
    schedulers, found = SCHEDULES[name](library.optim.lr_scheduler, optimizer), []
    for epoch in range(14):
        optimizer.step()
        if by_hand and epoch == 4:
            optimizer.param_groups[0]["lr"] = 0.05
        if by_hand and epoch == 6 and name == "step":
            optimizer.add_param_group({"params": [ps[2]], "lr": 0.9})
        for scheduler in schedulers:
            scheduler.step()
        found.append([group["lr"] for group in optimizer.param_groups])
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_combine_and_keep_a_rate_set_by_hand_with_the_bits_of_pytorchs(name, by_hand):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        assert rates(minidl, name, by_hand) == rates(torch, name, by_hand)
        optimizer = optim.SGD([minidl.ones(1, requires_grad=True)], 0.1)
        with pytest.raises(minidl.UserError, match="LambdaLR: 2 functions for 1 groups"):
            optim.lr_scheduler.LambdaLR(optimizer, [warm_up, warm_up])


# Positional arguments -------------------------------------------------------------------------------------------------
PLACES = ((nn, torch.nn), (minidl.nn.functional, torch.nn.functional), (optim, torch.optim),
          (optim.lr_scheduler, torch.optim.lr_scheduler), (nn.utils, torch.nn.utils), (minidl, torch))
# What both have under one name in other words: none has an order that a call could mistake.
RENAMED = {"cdist", "split"}


def positional(function):
    """The names of the arguments that a call may give by position, but for the first; None where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]


def test_arguments_by_position_are_those_of_pytorch():
    seen, wrong = 0, {}
    for ours, theirs in PLACES:
        for name in dir(ours):
            one, other = getattr(ours, name), getattr(theirs, name, None)
            if name.startswith("_") or name in RENAMED or not callable(one) or not callable(other):
                continue
            mine, right = positional(one), positional(other)
            if right:
                seen += 1
                if mine != right[:len(mine)]:
                    wrong[name] = (mine, right)
    assert seen > 80 and not wrong
