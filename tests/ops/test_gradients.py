"""Every gradient formula against central differences in float64, and the rules of ``backward`` on chains of ops.

One random projection checks all elements of a gradient at once: with f(x) = sum(w * y(x)) for a random w, the slope of
f along a random direction d must be sum(df/dx * d); an element that is wrong by e shows as e times its part of d.
"""

from collections.abc import Callable

import numpy as np
import pytest
from gradient_cases import CASES, LAYOUTS, Array, B, constant, distinct

from bench.support.kernel_cases import OPS
from minidl import Runtime, current_runtime, no_grad, ops
from minidl.errors import UserError
from minidl.kernels.cpu import blocks, conv
from minidl.tensor import Tensor

STEP = 1e-3
# Of sum|w y| + sum|df/dx d|. The five-point slope is off by STEP^4 f^(5) / 30, 3e-14 f^(5), and by the rounding of f,
# 1e-16 over STEP, 1e-13. Fifth derivatives reach 1,000 times that scale (quotients): 4e-11, as measured. An element
# that is wrong is wrong by far more.
TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    """Kernels cut arrays into blocks of B float64, so that small arrays have several, with ragged ends."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 8 * B)
    monkeypatch.setattr(conv, "PIXELS", 20)


@pytest.fixture(autouse=True)
def runtime():
    with Runtime(device="cpu:virtual", memory_budget="4MiB", host_memory="1MiB", poisoned=True) as made:
        yield made


def leaf(values, requires_grad=True) -> Tensor:
    tensor = constant(values, np.float64)
    tensor.requires_grad = requires_grad
    return tensor


def gradients(function, arrays, projection, wanted=None) -> list[Array | None]:
    """d sum(projection * function(arrays)) / d arrays, by backward()."""
    leaves = [leaf(a, wanted is None or i in wanted) for i, a in enumerate(arrays)]
    function(*leaves).backward(constant(projection))
    current_runtime().check()
    return [None if x.grad is None else x.grad.numpy() for x in leaves]


def value(function, arrays) -> Array:
    with no_grad():
        return function(*[leaf(a) for a in arrays]).numpy()


def assert_gradients_are_the_slopes_of(function, arrays, rng) -> None:
    y = value(function, arrays)
    projection = rng.standard_normal(y.shape)
    for position, grad in enumerate(gradients(function, arrays, projection)):
        assert grad is not None, f"input {position} got no gradient"
        assert grad.shape == arrays[position].shape
        direction = rng.standard_normal(grad.shape)
        at = {n: value(function, [a + n * STEP * direction if i == position else a for i, a in enumerate(arrays)])
              for n in (-2, -1, 1, 2)}
        slope = float((projection * (8 * (at[1] - at[-1]) - (at[2] - at[-2]))).sum()) / (12 * STEP)
        parts = grad * direction
        scale = np.abs(projection * y).sum() + np.abs(parts).sum()
        assert abs(slope - parts.sum()) <= TOLERANCE * scale, (
            f"input {position} of shapes {[a.shape for a in arrays]}: slope {slope}, gradient {parts.sum()}")


def lineage(y: Tensor) -> set[str]:
    """The names of the calls that led to a value."""
    names, wanted = set(), [y.storage.call]
    while wanted:
        call = wanted.pop()
        if call is not None:
            names.add(call.op.name)
            wanted += [s.call for s in call.inputs]
    return names


def test_the_table_has_every_op_that_has_a_gradient_and_no_other():
    assert set(CASES) == {name for name, op in OPS.items() if op.vjp is not None}


@pytest.mark.parametrize("name", CASES)
def test_every_case_calls_the_op_that_it_stands_under(name):
    rng = np.random.default_rng(0)
    for case in CASES[name]:
        called = lineage(case.function(*[leaf(case.draw(rng, shape)) for shape in case.shapes]))
        assert name in called, f"{case.shapes}: only {called}"  # reshape and the like may have nothing to do


@pytest.mark.default(layout=[LAYOUTS[0], LAYOUTS[1]])  # every operation as it comes, and permuted
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_slope_along_a_random_direction(name, layout):
    rng = np.random.default_rng(1)
    for case in CASES[name]:
        bases, views = zip(*[layout(rng, shape, case.draw) for shape in case.shapes], strict=True)
        assert_gradients_are_the_slopes_of(
            lambda *xs: case.function(*[view(x) for view, x in zip(views, xs, strict=True)]), bases, rng)  # noqa: B023


@pytest.mark.parametrize("name", CASES)
def test_an_input_gets_the_same_gradient_when_no_other_input_wants_one(name):
    rng = np.random.default_rng(2)
    for case in CASES[name]:
        arrays = [case.draw(rng, shape) for shape in case.shapes]
        projection = rng.standard_normal(value(case.function, arrays).shape)
        together = gradients(case.function, arrays, projection)
        for position, expected in enumerate(together):
            alone = gradients(case.function, arrays, projection, wanted={position})
            assert [g is not None for g in alone] == [i == position for i in range(len(arrays))]
            np.testing.assert_array_equal(alone[position], expected)


# Chains of ops ------------------------------------------------------------------------------------------------------
def aliased(a, x):
    """d/da arrives first from the sum, whose gradient also goes on to -x, and again from exp(a) before -x takes it."""
    minus, power = ops.neg(x), ops.exp(a)
    return (a + minus) * power


def residual(x, w):
    y = ops.tanh(ops.matmul(x, w))
    return ops.relu(y + x) * y


def shared_views(x, w):
    y = ops.matmul(x, w)
    return ops.concat([y, ops.permute(y, (1, 0)), ops.between(y, 0, 0, 2), y], 0)


CHAINS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "a leaf times itself": (lambda x: x * x, 1),
    "a value times itself": (lambda x: (lambda y: y * y)(ops.tanh(x)), 1),
    "a leaf plus itself": (lambda x: x + x, 1),
    "a value minus itself, scaled": (lambda x: (lambda y: y - y * 0.5)(ops.exp(x)), 1),
    "a product with itself": (lambda x: ops.matmul(x, x), 1),
    "a leaf joined to itself": (lambda x: ops.concat([x, x], 0), 1),
    "a value joined to itself": (lambda x: (lambda y: ops.concat([y, y, y], 1))(ops.sigmoid(x)), 1),
    "a residual": (residual, 2),
    "the output of a leaf's sum is used twice": (lambda a, b: (lambda s: ops.exp(s) * s)(a + b), 2),
    "a gradient shared by a leaf and a value": (aliased, 2),
    "views of one value, joined": (shared_views, 2),
    "two views of one leaf": (lambda x: ops.permute(x, (1, 0)) * ops.reshape(ops.reshape(x, (9,)), (3, 3)), 1),
    "a leaf, and a piece of it": (lambda x: ops.between(x, 0, 1, 2) * x, 1),
    "an input overwritten by its activation": (lambda x, y: ops.relu(x * y) + x, 2),
    "a mean taken off": (lambda x: (lambda y: y - y.mean(1, keepdim=True))(ops.exp(x)), 1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_of_every_use_add_up(name):
    rng = np.random.default_rng(3)
    function, count = CHAINS[name]
    assert_gradients_are_the_slopes_of(function, [distinct(rng, (3, 3)) * 0.3 for _ in range(count)], rng)


STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    ops.add, ops.sub, ops.mul, lambda a, b: ops.tanh(a), lambda a, b: ops.sigmoid(b), lambda a, b: ops.neg(a),
    lambda a, b: a + 1.5, lambda a, b: ops.permute(b, (1, 0)), lambda a, b: ops.tanh(ops.matmul(a, b) * 0.3),
    lambda a, b: ops.between(ops.concat([a, b], 0), 0, 1, 4), lambda a, b: ops.expand(a.sum(0), (3, 3)) * 0.3,
    lambda a, b: ops.reshape(ops.permute(a, (1, 0)), (3, 3)))


@pytest.mark.parametrize("seed", range(40))
def test_gradients_of_random_programs_are_their_slopes(seed):
    def program(*leaves):
        picks = np.random.default_rng(seed)
        values = list(leaves)
        for _ in range(9):
            step, a, b = STEPS[picks.integers(len(STEPS))], *picks.integers(len(values), size=2)
            values.append(step(values[a], values[b]))
        total = values[0]
        for other in values[1:]:  # so that every leaf and value has a gradient
            total = ops.tanh(total * 0.5) + other
        return total
    rng = np.random.default_rng(seed)
    assert_gradients_are_the_slopes_of(program, [rng.uniform(-0.5, 0.5, (3, 3)) for _ in range(3)], rng)


# The rules of backward() --------------------------------------------------------------------------------------------
def test_two_backward_calls_add_up_in_the_same_leaf():
    x = leaf([1.0, 2.0, 3.0])
    (x * x).sum().backward()  # 2 x
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 4.0, 6.0])
    (x * 5.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [7.0, 9.0, 11.0])


def test_adding_to_a_gradient_leaves_what_it_was_made_of_alone():
    x, y, seed = leaf([1.0, 2.0]), leaf([3.0, 4.0]), constant([10.0, 20.0])
    for _ in range(2):
        (x + y).backward(seed)  # both gradients, and the caller's own, start as the same bytes
    (x * 1.0).backward(seed)
    np.testing.assert_array_equal(seed.numpy(), [10.0, 20.0])
    np.testing.assert_array_equal(x.grad.numpy(), [30.0, 60.0])
    np.testing.assert_array_equal(y.grad.numpy(), [20.0, 40.0])


def test_a_forgotten_gradient_starts_anew():
    x = leaf([1.0, 2.0])
    (x * 3.0).sum().backward()
    x.grad = None
    (x * 4.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [4.0, 4.0])


def test_the_gradient_given_for_a_tensor_of_many_elements_weighs_them():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    (x * x).backward(constant([[1.0, 0.0], [-1.0, 10.0]]))
    np.testing.assert_array_equal(x.grad.numpy(), [[2.0, 0.0], [-6.0, 80.0]])


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_one_element_needs_no_gradient_whatever_its_shape(shape):
    x = leaf(np.full(shape, 3.0))
    (x * x).backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(shape, 6.0))


def test_backward_of_many_elements_without_a_gradient_is_refused():
    with pytest.raises(UserError, match=r"\[2\] needs a gradient"):
        (leaf([1.0, 2.0]) * 2.0).backward()


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(UserError, match=r"\[3\] does not fit \[2\]"):
        (leaf([1.0, 2.0]) * 2.0).backward(constant([1.0, 2.0, 3.0]))


def test_a_second_backward_over_the_same_graph_is_refused():
    x = leaf([1.0, 2.0])
    y = ops.exp(x).sum()
    y.backward()
    with pytest.raises(UserError, match="taken already"):
        y.backward()


def test_a_second_backward_over_a_part_of_the_graph_is_refused():
    x = leaf([1.0, 2.0])
    y = ops.exp(x)
    (y * 2.0).sum().backward()
    with pytest.raises(UserError, match="gradient of exp has been taken already"):
        (y * 3.0).sum().backward()


def test_backward_of_what_was_made_under_no_grad_is_refused():
    x = leaf([1.0, 2.0])
    with no_grad():
        y = x * x
    for dependent in (y.sum(), ops.exp(y).sum()):
        with pytest.raises(UserError, match="does not depend on anything"):
            dependent.backward()
    assert x.grad is None


def test_what_was_made_under_no_grad_or_detached_is_a_constant():
    x = leaf([2.0, 3.0])
    with no_grad():
        square = x * x
    (x * square + x * ops.detach(x * 10.0)).sum().backward()  # x^2 + 10 x, not 3 x^2 + 20 x
    np.testing.assert_array_equal(x.grad.numpy(), [24.0, 39.0])


def test_gradients_are_taken_again_after_no_grad_ends_in_an_error():
    with pytest.raises(ZeroDivisionError), no_grad():
        _ = 1 / 0
    x = leaf([2.0])
    (x * x).backward()
    assert x.grad.item() == 4.0


def test_a_leaf_that_does_not_require_a_gradient_gets_none():
    x, y = leaf([2.0]), leaf([3.0], requires_grad=False)
    (x * y).backward()
    assert (x.grad.item(), y.grad) == (3.0, None)
