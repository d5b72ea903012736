"""Every gradient formula against central differences in float64, and the rules of ``backward`` on chains of ops.

One random projection checks all elements of a gradient at once: with f(x) = sum(w * y(x)) for a random w, the slope of
f along a random direction d must be sum(df/dx * d); an element that is wrong by e shows as e times its part of d.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from kernel_cases import OPS

from minidl import Runtime, current_runtime, no_grad, ops
from minidl.errors import UserError
from minidl.kernels.cpu import blocks, conv, linear
from minidl.tensor import Tensor, apply

B = 4  # elements in a block of the kernels here
EDGES = (1, 2, B - 1, B, B + 1, 2 * B + 1)
STEP = 1e-3
# Of sum|w y| + sum|df/dx d|. The five-point slope is off by STEP^4 f^(5) / 30, 3e-14 f^(5), and by the rounding of f,
# 1e-16 over STEP, 1e-13. Fifth derivatives reach 1,000 times that scale (quotients): 4e-11, as measured. An element
# that is wrong is wrong by far more.
TOLERANCE = 1e-9

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(rng, shape):
    return rng.standard_normal(shape)


def positive(rng, shape):
    """In [1, 2]: logarithms, roots and quotients have small third derivatives there."""
    return rng.uniform(1.0, 2.0, shape)


def distinct(rng, shape):
    """No two values, and no value and zero, are nearer than 0.5: no step crosses a kink."""
    count = int(np.prod(shape))
    return (rng.permutation(count).reshape(shape) - count // 2 + 0.5) / 2


@dataclass(frozen=True)
class Case:
    """A function of tensors of these shapes, all of which are differentiated."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    draw: Draw = normal


def constant(values, dtype=None) -> Tensor:
    return current_runtime().tensor(np.asarray(values, dtype))


def unary(function, draw=normal):
    shapes = [(), *((n,) for n in EDGES), *((2, n) for n in EDGES), (3, 2, 5)]
    return [Case(function, (shape,), draw) for shape in shapes]


def binary(function, draw=normal):
    same = [Case(function, ((2, n), (2, n)), draw) for n in EDGES]
    spread = [Case(function, shapes, draw) for n in EDGES for shapes in
              [((2, n), (n,)), ((n,), (2, n)), ((2, 1), (1, n)), ((n, 1), (3, 1, n)), ((), (n,)), ((n,), ())]]
    return same + spread


def product(m, k, n, a_lead=(), b_lead=()):
    return [Case(partial(apply, OPS["matmul"], transpose_a=ta, transpose_b=tb),
                 ((*a_lead, *((k, m) if ta else (m, k))), (*b_lead, *((n, k) if tb else (k, n)))))
            for ta in (False, True) for tb in (False, True)]


def convolution(n=2, c=2, k=3, h=5, w=5, kernel=(3, 3), bias=True, **attrs):
    shapes = ((n, c, h, w), (k, c, *kernel), (k,))
    return Case(partial(ops.conv2d, **attrs), shapes if bias else shapes[:2])


def normalisation(shape, *, training):
    """gamma and beta are inputs; statistics are the batch's in training, and constants otherwise."""
    c = shape[1]

    def function(x, gamma, beta):
        mean, var = constant(np.linspace(-1.0, 1.0, c)), constant(np.linspace(0.5, 2.0, c))
        return ops.batch_norm(x, gamma, beta, mean, var, training=training, eps=0.5)
    return Case(function, (shape, (c,), (c,)))


def entropy(rows, classes, ignored=()):
    """``ignored`` rows count neither in the sum nor in the mean."""
    labels = np.arange(rows) * 7 % classes
    labels[list(ignored)] = -100  # the default of ignore_index
    return Case(lambda x: ops.cross_entropy(x, constant(labels)), ((rows, classes),))


def pooling(function, h, w, kernel, n=2, c=3, **attrs):
    return Case(lambda x: function(x, kernel, **attrs), ((n, c, h, w),), distinct)


CASES: dict[str, list[Case]] = {
    "add": binary(ops.add), "sub": binary(ops.sub), "mul": binary(ops.mul), "div": binary(ops.div, positive),
    "neg": unary(ops.neg), "scale": unary(lambda x: x * -2.5), "shift": unary(lambda x: 3.0 - x),
    "exp": unary(ops.exp), "log": unary(ops.log, positive), "sqrt": unary(ops.sqrt, positive),
    "relu": unary(ops.relu, distinct), "tanh": unary(ops.tanh), "sigmoid": unary(ops.sigmoid),
    "gelu": unary(ops.gelu),
    "dropout": unary(lambda x: ops.dropout(x, 0.4, seed=11)),
    "sum_to": [Case(partial(ops.sum_to, shape=to), (shape,)) for n in EDGES for shape, to in
               [((3, n), (n,)), ((n, 3), (n, 1)), ((2, n, 3), (1, n, 1)), ((2, n), ()), ((2, n, 3), (n, 3))]],
    "expand": [Case(partial(ops.expand, shape=to), (shape,)) for n in EDGES for shape, to in
               [((n,), (3, n)), ((n, 1), (n, 3)), ((1, n, 1), (2, n, 3)), ((), (2, n))]],
    "reshape": [Case(partial(ops.reshape, shape=to), (shape,)) for n in EDGES for shape, to in
                [((2, n), (n, 2, 1)), ((n, 6), (2, -1, 3)), ((2, n), (2 * n,))]],
    "permute": [Case(partial(ops.permute, axes=axes), ((2, n, 3),)) for n in EDGES
                for axes in [(2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 2, 1), (0, 1, 2)]],
    "narrow": [Case(partial(ops.narrow, axis=axis, start=start, stop=start + n), (shape,)) for n in EDGES
               for axis, start, shape in
               [(0, 0, (n + 2, 3)), (0, 2, (n + 2, 3)), (1, 1, (2, n + 3, 2)), (2, 0, (1, 2, n))]],
    "contiguous": [Case(lambda x: ops.contiguous(ops.permute(x, (1, 0))), ((2, n),)) for n in EDGES[1:]],
    "concat": [Case(lambda *xs, axis=axis: ops.concat(xs, axis), shapes) for n in EDGES for axis, shapes in
               [(0, ((n, 3), (2, 3))), (1, ((2, 1), (2, n), (2, 3))), (2, ((2, 2, n), (2, 2, 5))), (1, ((n, 2),))]],
    "matmul": [case for n in EDGES for sizes in [(n, 3, 2), (2, n, 3), (3, 2, n)] for case in product(*sizes)]
    + product(2, 3, 5, (2,), (2,)) + product(2, 3, 5, (3, 1), (2,)) + product(2, 3, 5, (), (2,))
    + product(1, 2, 1, (2,)),
    "linear": [Case(ops.linear_, shapes) for n in EDGES for shapes in
               [((n, 3), (2, 3)), ((n, 3), (2, 3), (2,)), ((2, n), (3, n), (3,)), ((2, 3), (n, 3), (n,)),
                ((2, n, 3), (2, 3), (2,))]],
    "conv2d": [convolution(n=n) for n in EDGES] + [convolution(c=n, k=B) for n in EDGES]
    + [convolution(k=n, bias=False) for n in EDGES] + [convolution(h=n, w=2 * B + 1, padding=1) for n in EDGES]
    + [convolution(h=n, w=n, kernel=(1, 1)) for n in EDGES]
    # Strides that leave the last rows or columns unused, windows wider than the image, unequal sides.
    + [convolution(h=6, w=8, stride=2, padding=1), convolution(h=8, w=6, stride=3), convolution(stride=(2, 1)),
       convolution(kernel=(1, 1), stride=2, h=4), convolution(kernel=(7, 7), padding=3, h=3, w=4),
       convolution(kernel=(2, 3), padding=(0, 2)), convolution(kernel=(5, 5), bias=False)],
    "max_pool2d": [pooling(ops.max_pool2d, n, 2 * B + 1, (min(n, 2), 2)) for n in EDGES]
    + [pooling(ops.max_pool2d, n, 3, 3, stride=2, padding=1) for n in EDGES]
    + [pooling(ops.max_pool2d, 7, 5, (3, 2), stride=(1, 2)), pooling(ops.max_pool2d, 5, 5, 2, c=2 * B + 1, n=1)],
    "avg_pool2d": [pooling(ops.avg_pool2d, n, 2 * B + 1, (min(n, 2), 2)) for n in EDGES]
    + [pooling(ops.avg_pool2d, n, 3, 3, stride=2, padding=1) for n in EDGES]
    + [pooling(ops.avg_pool2d, 7, 5, (3, 2), stride=(1, 2)), pooling(ops.avg_pool2d, 5, 5, 2, c=2 * B + 1, n=1)],
    "adaptive_avg_pool2d": [pooling(ops.adaptive_avg_pool2d, n, 5, size) for n in EDGES
                            for size in (1, 3, (n, 5), (2, 7))],
    "batch_norm": [normalisation(shape, training=training) for n in EDGES for training in (False, True)
                   for shape in [(n, 2, 3), (3, n), (2, n, 2, 2), (2, 3, 1, n)]],
    "cross_entropy": [entropy(rows, classes) for n in EDGES for rows, classes in [(n, 3), (2, n)]]
    + [entropy(rows, 3, ignored=(0, rows - 1)) for rows in (B - 1, B + 1)],
    "layer_norm": [Case(partial(ops.layer_norm, eps=1.0), (shape, shape[-1:], shape[-1:])) for n in EDGES
                   for shape in [(n,), (n, 3), (2, n), (2, 3, n)]],
    "softmax": [Case(ops.softmax, shapes) for n in EDGES for shapes in
                [((n,),), ((2, n),), ((2, n), (n,)), ((n, 3), (n, 1)), ((2, 3, n), (2, 1, n)), ((n, 2), (n, 2))]],
    "embedding": [Case(lambda w, ids=ids: ops.embedding_(w, constant(ids)), ((5, n),)) for n in EDGES
                  for ids in ([2], [4, 0, 4, 4], [[1, 3, 1], [3, 3, 0]], [1, 4, 2, 2, 2, 0, 1, 1, 4])],
    "gather_rows": [Case(lambda x, at=at: ops.gather_rows(x, constant(at)), ((2, 3, n),)) for n in EDGES
                    for at in ([[0], [2]], [[1, 1, 0, 1], [2, 0, 2, 2]])],
}


# Inputs as views: each makes a base array that a view function turns into an array of the shape that was asked for.
def plain(rng, shape, draw):
    return draw(rng, shape), lambda x: x


def permuted(rng, shape, draw):
    axes = tuple(np.roll(range(len(shape)), 1).tolist())
    return draw(rng, tuple(shape[a] for a in axes)), lambda x: ops.permute(x, tuple(np.argsort(axes).tolist()))


def narrowed(rng, shape, draw):
    if not shape:
        return plain(rng, shape, draw)
    wide = (*shape[:-1], shape[-1] + 3)
    return draw(rng, wide), lambda x: ops.narrow(x, len(shape) - 1, 2, 2 + shape[-1])


def expanded(rng, shape, draw):
    base = tuple(1 if i % 2 == 1 or len(shape) == 1 else n for i, n in enumerate(shape))
    return draw(rng, base), lambda x: ops.expand(x, shape)


def reshaped(rng, shape, draw):
    flat = (1, *shape[::-1], 1)
    return draw(rng, flat), lambda x: ops.reshape(x, shape)


LAYOUTS = (plain, permuted, narrowed, expanded, reshaped)


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    """Kernels cut arrays into blocks of B float64, so that small arrays have several, with ragged ends."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 8 * B)
    monkeypatch.setattr(linear, "BLOCK_BYTES", 8)
    monkeypatch.setattr(conv, "COLUMN_BYTES", 600)


@pytest.fixture(autouse=True)
def runtime():
    with Runtime(device="cpu", memory_budget="4MiB", host_memory="1MiB", poisoned=True) as made:
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
    return ops.concat([y, ops.permute(y, (1, 0)), ops.narrow(y, 0, 0, 2), y], 0)


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
    "a leaf, and a piece of it": (lambda x: ops.narrow(x, 0, 1, 2) * x, 1),
    "an input overwritten by its activation": (lambda x, y: ops.relu(x * y) + x, 2),
    "a mean taken off": (lambda x: (lambda y: y - y.mean(1, keepdims=True))(ops.exp(x)), 1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_of_every_use_add_up(name):
    rng = np.random.default_rng(3)
    function, count = CHAINS[name]
    assert_gradients_are_the_slopes_of(function, [distinct(rng, (3, 3)) * 0.3 for _ in range(count)], rng)


STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    ops.add, ops.sub, ops.mul, lambda a, b: ops.tanh(a), lambda a, b: ops.sigmoid(b), lambda a, b: ops.neg(a),
    lambda a, b: a + 1.5, lambda a, b: ops.permute(b, (1, 0)), lambda a, b: ops.tanh(ops.matmul(a, b) * 0.3),
    lambda a, b: ops.narrow(ops.concat([a, b], 0), 0, 1, 4), lambda a, b: ops.expand(a.sum(0), (3, 3)) * 0.3,
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
