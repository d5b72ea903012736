"""Operators and methods that write in place: what they write, who sees it, and where a gradient flows."""

import inspect
from operator import methodcaller

import numpy as np
import pytest

import minidl
from minidl import Runtime, ShapeError, UserError, nn, no_grad
from minidl.ops.inplace import UNARY

OPERATORS = {
    "+=": (lambda x, y: x.__iadd__(y), lambda x, y: x + y), "-=": (lambda x, y: x.__isub__(y), lambda x, y: x - y),
    "*=": (lambda x, y: x.__imul__(y), lambda x, y: x * y), "/=": (lambda x, y: x.__itruediv__(y), lambda x, y: x / y),
}
METHODS = {
    "add_": lambda x, y: x + y, "sub_": lambda x, y: x - y, "mul_": lambda x, y: x * y, "div_": lambda x, y: x / y,
    "copy_": lambda x, y: x * 0 + y,
}


@pytest.fixture(autouse=True, params=["none", "recompute"])
def runtime(request):
    with Runtime("cpu", memory_budget="1MiB", policy=request.param, poisoned=True) as made:
        yield made


@pytest.mark.parametrize("sign", OPERATORS)
@pytest.mark.parametrize("operand", [2.0, [4.0, 2.0, 0.5], [[2.0], [4.0]], 3])
def test_an_operator_in_place_writes_what_the_operator_makes_and_every_view_sees_it(sign, operand):
    in_place, plain = OPERATORS[sign]
    start = np.arange(1.0, 7.0, dtype="f4").reshape(2, 3)
    x = minidl.tensor(start)
    other = minidl.tensor(operand) if isinstance(operand, list) else operand
    view, alias, expected = x[0], x.alias(), plain(minidl.tensor(start), other).tolist()
    assert in_place(x, other) is x
    assert x.tolist() == alias.tolist() == expected and view.tolist() == expected[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_place_broadcasts_and_returns_its_tensor(name):
    start = np.arange(1.0, 7.0, dtype="f4").reshape(2, 3)
    x, row = minidl.tensor(start), minidl.tensor([2.0, 4.0, 8.0])
    assert getattr(x, name)(row) is x
    assert x.tolist() == METHODS[name](start, np.array([2, 4, 8], "f4")).tolist()


def test_add_and_sub_in_place_take_alpha():
    x = minidl.ones(2)
    x.add_(minidl.tensor([1.0, 2.0]), alpha=-0.5).sub_(1.0, alpha=2)
    assert x.tolist() == [1 - 0.5 - 2, 1 - 1 - 2]


@pytest.mark.parametrize("name", UNARY)
def test_every_function_of_one_tensor_has_a_method_in_place(name):
    values = np.array([0.25, 0.5, 2.0], "f4")
    x = minidl.tensor(values)
    assert getattr(x, f"{name}_")() is x
    assert x.tolist() == UNARY[name](minidl.tensor(values)).tolist()


def test_a_hand_written_sgd_trains():
    w = minidl.ones(3, requires_grad=True)
    for _ in range(2):
        (w * w).sum().backward()
        with no_grad():
            for p in [w]:
                p -= 0.1 * p.grad
        w.grad = None
    np.testing.assert_allclose(w.numpy(), [0.64] * 3, rtol=1e-6)  # 1 - 0.2 = 0.8, 0.8 - 0.16 = 0.64


def test_a_view_written_by_an_operator_writes_its_base():
    a = minidl.zeros(4)
    b = a[1:3]
    b += 5.0
    a[0] -= 1.0
    assert a.tolist() == [-1.0, 5.0, 5.0, 0.0]


def test_data_of_a_leaf_may_be_written_and_assigned_whatever_requires_a_gradient():
    w = minidl.ones(2, requires_grad=True)
    w.data -= 0.5
    assert w.tolist() == [0.5, 0.5]
    w.data = minidl.tensor([3.0, 4.0])
    assert w.tolist() == [3.0, 4.0] and w.requires_grad and w.operation_name == ""


WRITES = {
    "+=": lambda x: x.__iadd__(1.0), "-=": lambda x: x.__isub__(x), "*=": lambda x: x.__imul__(2.0),
    "/=": lambda x: x.__itruediv__(2.0), "**=": lambda x: x.__ipow__(2), "add_": lambda x: x.add_(x),
    "copy_": lambda x: x.copy_(minidl.ones(2)), "fill_": lambda x: x.fill_(0.0), "zero_": lambda x: x.zero_(),
    "clamp_": lambda x: x.clamp_(0.0, 1.0), "masked_fill_": lambda x: x.masked_fill_(x > 0, 1.0),
    **{f"{name}_": methodcaller(f"{name}_") for name in UNARY},
}


SETS = ("copy_", "fill_", "zero_")


@pytest.mark.parametrize("name", [name for name in WRITES if name not in SETS])
def test_a_leaf_that_requires_a_gradient_is_written_under_no_grad_only(name):
    w = minidl.ones(2, requires_grad=True)
    for x in (w, w[0:2]):
        with pytest.raises(UserError, match="is a leaf that requires a gradient: write it in place only under"):
            WRITES[name](x)
    assert w.tolist() == [1.0, 1.0]
    with no_grad():
        assert WRITES[name](w) is w
    assert w.requires_grad and w.operation_name == ""


@pytest.mark.parametrize("name", SETS)
def test_a_leaf_that_requires_a_gradient_is_set_anywhere_but_to_what_requires_one(name):
    w, v = minidl.zeros(2, requires_grad=True), minidl.ones(2, requires_grad=True)
    WRITES[name](w)
    WRITES[name](w[0:1]) if name != "copy_" else None
    assert w.requires_grad and w.operation_name == "" and w.tolist() == [name == "copy_"] * 2
    with pytest.raises(UserError, match="is a leaf that requires a gradient"):
        w.copy_(v)


@pytest.mark.parametrize("name", WRITES)
def test_a_gradient_flows_through_what_a_handle_goes_on_with(name, runtime):
    """Against the same function out of place: y = 3 w, written, times w."""
    def gradient(in_place):
        w = minidl.tensor([0.5, 2.0], requires_grad=True)
        y = w * 3.0
        if in_place:
            assert WRITES[name](y) is y
        else:
            y = OUT_OF_PLACE[name](y)
        (y * w).sum().backward()
        return w.grad.tolist()
    assert gradient(True) == gradient(False)
    runtime.check()


OUT_OF_PLACE = {
    "+=": lambda x: x + 1.0, "-=": lambda x: x - x, "*=": lambda x: x * 2.0, "/=": lambda x: x / 2.0,
    "**=": lambda x: x ** 2, "add_": lambda x: x + x, "copy_": lambda x: minidl.ones(2),
    "fill_": lambda x: minidl.zeros(2), "zero_": lambda x: minidl.zeros(2), "clamp_": lambda x: x.clamp(0.0, 1.0),
    "masked_fill_": lambda x: x.masked_fill(x > 0, 1.0),
    **{f"{name}_": function for name, function in UNARY.items()},
}


def test_a_residual_that_is_added_in_place_has_the_gradient_of_the_sum():
    w = minidl.tensor([1.0, 2.0], requires_grad=True)
    out = w * 2.0
    shortcut = w * w
    out += shortcut
    out *= w
    out.sum().backward()  # (2 w + w^2) w: 4 w + 3 w^2
    assert w.grad.tolist() == [7.0, 20.0]


def test_a_total_that_starts_without_a_gradient_goes_on_with_one():
    w = minidl.tensor([1.0, 2.0], requires_grad=True)
    total = minidl.zeros(2)
    for _ in range(3):
        total += w * w
    total.sum().backward()
    assert w.grad.tolist() == [6.0, 12.0]


def test_where_a_gradient_flows_bytes_that_another_tensor_shares_are_not_written():
    w, a = minidl.ones(2, requires_grad=True), minidl.zeros(4)
    b = a[1:3]
    for x in (a, b):
        for write in (x.__iadd__, x.copy_):
            with pytest.raises(UserError, match="a gradient flows through the result, and tensor .* shares its bytes"):
                write((w * 2.0).sum())
    assert a.tolist() == [0.0] * 4 and b.operation_name == "index"
    del b, x, write
    a *= (w * 2.0).sum()
    assert a.requires_grad


def test_a_result_that_does_not_fit_is_refused_and_nothing_is_written():
    x, n = minidl.ones(3), minidl.tensor([1, 2])
    for write, message in ((lambda: x.__iadd__(minidl.ones(2, 3)), r"\[2, 3\] does not broadcast to \[3\]"),
                           (lambda: x[:1].add_(x), r"\[3\] does not broadcast to \[1\]"),
                           (lambda: n.__iadd__(0.5), "a result of float32 does not fit a tensor of int64"),
                           (lambda: x.fill_(minidl.ones(2)), "a tensor without dimensions")):
        with pytest.raises(ShapeError, match=message):
            write()
    assert x.tolist() == [1.0] * 3 and n.tolist() == [1, 2]


def test_masks_are_written_by_and_and_or():
    a, b = minidl.tensor([1.0, 2.0, 3.0]) > 1, minidl.tensor([1.0, 2.0, 3.0]) > 2
    alias = a
    a &= b
    assert a is alias and a.tolist() == [False, False, True]
    a |= ~b
    assert alias.tolist() == [True, True, True]


class Scale:
    def __call__(self, x):
        return x * 100.0


@pytest.mark.parametrize("thing", [Scale(), lambda x: x, 3, "relu"], ids=["callable", "function", "number", "name"])
def test_what_is_no_module_is_refused_by_every_container(thing):
    inside = nn.Identity()
    for make in (lambda: nn.Sequential(inside, thing), lambda: nn.Sequential({"a": inside, "b": thing}),
                 lambda: nn.ModuleList([inside, thing]), lambda: nn.ModuleList().append(thing),
                 lambda: nn.ModuleList([inside]).insert(0, thing), lambda: nn.ModuleDict({"a": thing}),
                 lambda: nn.ModuleDict().__setitem__("a", thing), lambda: nn.Module().add_module("a", thing),
                 lambda: nn.ModuleList([inside]).__setitem__(0, thing)):
        with pytest.raises(TypeError, match=r"not a minidl.nn.Module; a subclass of minidl.nn.Module") as error:
            make()
        assert isinstance(error.value, UserError)


def test_none_keeps_a_place_in_a_container_as_in_pytorch():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    net = nn.Sequential(one, None, two)
    assert len(net) == 3 and net[1] is None and net[2] is two and list(net) == [one, None, two]
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [name for name, _ in net.named_children()] == ["0", "2"]
    with pytest.raises(TypeError):
        net(minidl.ones(1, 2))


def test_containers_are_cut_and_changed_by_position_and_name():
    a, b, c = nn.ReLU(), nn.Tanh(), nn.Sigmoid()
    net = nn.Sequential(a, b, c)
    part = net[1:]
    assert isinstance(part, nn.Sequential) and list(part) == [b, c] and net[-1] is c
    del net[0]
    net.insert(0, c)
    net[1] = a
    assert list(net) == [c, a, c] and [name for name, _ in net.named_children()] == ["0", "1", "2"]
    with pytest.raises(IndexError):
        net[3]
    named = nn.ModuleDict({"a": a})
    named.update({"b": b})
    assert named.pop("a") is a and list(named) == ["b"]


def test_a_detached_view_whose_base_was_dropped_may_become_a_leaf(runtime):
    w = minidl.ones(2, requires_grad=True)
    view = (w * 3.0).detach()
    view.requires_grad_()
    (view * view).sum().backward()
    assert view.grad.tolist() == [6.0, 6.0] and w.grad is None
    runtime.check()


def test_an_activation_with_inplace_says_so_in_its_signature_and_takes_its_operand_by_name():
    for name in ("celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu", "relu6", "selu",
                 "silu", "threshold"):
        function = getattr(nn.functional, name)
        arguments = inspect.signature(function).parameters
        assert [*arguments][0] == "input" and [*arguments][-1] == "inplace" and not arguments["inplace"].default
        x = minidl.tensor([-1.0, 2.0, 5.0])
        more = dict.fromkeys([*arguments][1:-1], 0.5)
        y = function(input=x, **more)
        assert x.tolist() == [-1.0, 2.0, 5.0] and function(input=x, inplace=True, **more) is x
        assert x.tolist() == y.tolist()
        assert function(minidl.tensor([-1.0, 2.0, 5.0]), *more.values(), True).tolist() == y.tolist()


def test_each_function_of_one_tensor_takes_it_by_pytorchs_name():
    x, others = minidl.tensor([[0.5, 1.5]]), {"cosine_similarity": "x1", "one_hot": "tensor",
                                             "scaled_dot_product_attention": "query"}
    first = {name: next(iter(inspect.signature(getattr(nn.functional, name)).parameters))
             for name in nn.functional.__all__}
    assert first == {name: others.get(name, "input") for name in nn.functional.__all__}
    for name in ("gelu", "softplus", "softshrink", "logsigmoid", "relu"):
        assert getattr(nn.functional, name)(input=x).shape == (1, 2)


def test_two_nan_are_close_only_if_asked_for():
    x = minidl.tensor([float("nan"), 1.0])
    assert not minidl.allclose(x, x) and minidl.allclose(x, x, equal_nan=True) and x.allclose(x, 0.0, 0.0, True)
    assert not x.allclose(minidl.tensor([float("nan"), 2.0]), equal_nan=True)
