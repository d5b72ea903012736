"""Every CUDA kernel against the plain float64 formulas, simulated: block edges, layouts, donated outputs, dtypes.

Blocks are made tiny (16 threads of 4 elements each), so that small arrays have several of them, with ragged ends.
"""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401 - the name bfloat16
import numpy as np
import pytest
from cuda_kernel_calls import TOLERANCE, Placed, call, channels_last, check, make_blocks_tiny, reversed_in_wider
from cuda_simulator import Memory, Simulator, Span

from bench.support.kernel_cases import CASES, OPS, RANDOM, Case, shared_bytes
from minidl import meta as metas
from minidl.device.cuda import memory_format
from minidl.kernels.cpu import COMPOSED
from minidl.kernels.cpu import KERNELS as CPU
from minidl.kernels.cuda import KERNELS
from minidl.meta import float32, meta

PRODUCTS = {"conv2d", "conv2d_relu", "conv2d_dgrad", "conv2d_wgrad", "matmul", "linear", "linear_dgrad", "linear_wgrad",
            "scaled_dot_product_attention", "scaled_dot_product_attention_grad",  # what the vendor's libraries do
            *COMPOSED}
HERE = [c for c in CASES if c.name not in PRODUCTS]


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    make_blocks_tiny(monkeypatch)



def chosen(dtype):
    """Every case in float32; in the other dtypes some of each operation."""
    if dtype == "float32":
        return HERE
    by_name: dict[str, list[Case]] = {}
    for case in HERE:
        by_name.setdefault(case.name, []).append(case)
    return [c for cases in by_name.values() for i, c in enumerate(cases) if i == 3 or i >= len(cases) - 1]


ONE_EACH = {case.name: case for case in HERE}.values()  # an operation's last
EVERY = [pytest.param(case, dtype, id=f"{case}-{dtype}") for dtype in TOLERANCE for case in chosen(dtype)]


def test_the_operations_that_have_a_cuda_kernel_are_all_but_convolutions_and_products():
    launched = {name for name, op in OPS.items() if not op.view}
    assert set(KERNELS) - {"add_relu"} == launched - PRODUCTS == set(CPU) - PRODUCTS
    assert {c.name for c in HERE} | RANDOM | {"add_relu"} == set(KERNELS)


@pytest.mark.default(case=ONE_EACH, dtype=["float32"])
@pytest.mark.parametrize(("case", "dtype"), EVERY)
def test_the_kernel_equals_the_formula_on_contiguous_and_on_strided_inputs(case, dtype):
    inputs = case.inputs(dtype)
    check(case, call(case.name, inputs, case.attrs), inputs, dtype)
    check(case, call(case.name, inputs, case.attrs, layout=reversed_in_wider), inputs, dtype)


@pytest.mark.default(case=ONE_EACH, dtype=["float32"], layout=[None])
@pytest.mark.parametrize(("case", "dtype", "layout"), [
    pytest.param(*p.values, layout, id=f"{p.id}-{layout.__name__ if layout else None}",
                 marks=pytest.mark.full if layout and p.values[1] != "float32" else ())  # types do not change addresses
    for p in EVERY if OPS[p.values[0].name].donates for layout in (None, channels_last)])
def test_an_output_over_an_input_has_the_same_bytes_wherever_the_engine_may_put_it_there(case, dtype, layout):
    inputs = case.inputs(dtype)
    plain = call(case.name, inputs, case.attrs, layout=layout)
    for output, source in shared_bytes(case.name, [meta(a.shape, metas.DTYPES[a.dtype.name]) for a in inputs],
                                       case.attrs):
        donated = call(case.name, inputs, case.attrs, layout=layout, donate=(output, source))
        assert [a.tobytes() for a in donated] == [a.tobytes() for a in plain], f"output {output} over {source}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", [None, reversed_in_wider, channels_last])
@pytest.mark.parametrize("shape", [(), (1,), (65,), (2, 3, 5, 4)])
def test_a_cast_rounds_to_nearest_and_back_it_is_exact(shape, layout, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for name in ("cast", "cast_grad"):
        half, = call(name, [x], {"dtype": metas.DTYPES[dtype]}, layout=layout)
        np.testing.assert_array_equal(half, x.astype(dtype))
        full, = call(name, [half], {"dtype": metas.float32}, layout=layout)
        np.testing.assert_array_equal(full, half.astype(np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("count", [1, 40])
def test_rows_of_a_float32_table_are_looked_up_as_halves_and_their_gradient_is_added_up_in_float32(count, dtype):
    rng, half = np.random.default_rng(1), metas.DTYPES[dtype]
    table, ids = rng.standard_normal((5, 19)).astype(np.float32), rng.integers(0, 4, (2, count))
    for layout in (None, reversed_in_wider):
        y, = call("embedding", [table, ids], {"dtype": half}, layout=layout)
        np.testing.assert_array_equal(y, table.astype(dtype)[ids])
        right = np.zeros(table.shape)
        np.add.at(right, ids, y.astype(np.float64))
        dw, = call("embedding_grad", [y, ids], {"rows": 5, "dtype": metas.float32}, layout=layout)
        np.testing.assert_allclose(dw, right, rtol=1e-5, atol=1e-5)
        assert dw.dtype == np.float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_bias_in_float32_is_added_to_halves_that_lie_in_either_order(dtype):
    rng = np.random.default_rng(1)
    memory = Memory(1 << 16)
    x, b = rng.standard_normal((2, 3, 4, 5)).astype(dtype), rng.standard_normal((3, 1, 1)).astype(np.float32)
    for layout in (None, channels_last):
        y = Placed(memory, x.shape, dtype, layout(x.shape) if layout else None, x)
        bias = Placed(memory, b.shape, "float32", None, b)
        KERNELS["add"].issue(Simulator(memory), [y.address, y.address, bias.address], [y.meta, y.meta, bias.meta], {})
        np.testing.assert_array_equal(y.array, (x.astype(np.float32) + b).astype(dtype))


IMAGES = {"batch_norm_stats", "batch_norm", "batch_norm_relu", "batch_norm_add_relu", "batch_norm_grad_reduce",
          "batch_norm_relu_grad_reduce", "batch_norm_grad", "batch_norm_relu_grad", "max_pool2d", "max_pool2d_grad",
          "avg_pool2d", "avg_pool2d_grad", "adaptive_avg_pool2d", "adaptive_avg_pool2d_grad", "bias_grad"}


def has_planes(case):
    return any(len(s) == 4 for s in case.shapes if not isinstance(s[0], str))


@pytest.mark.parametrize("case", [c for c in HERE if c.name in IMAGES and has_planes(c)], ids=str)
def test_feature_maps_may_be_channels_last_in_and_out(case):
    inputs = case.inputs("float32")
    check(case, call(case.name, inputs, case.attrs, layout=channels_last), inputs, "float32")


def test_elementwise_operations_on_channels_last_maps_are_dense_and_keep_their_layout():
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    memory = Memory(1 << 16)
    simulator = Simulator(memory)
    placed = [Placed(memory, x.shape, "float32", channels_last(x.shape), values) for values in (0, x, x)]
    KERNELS["add"].issue(simulator, [p.address for p in placed], [p.meta for p in placed], {})
    np.testing.assert_array_equal(placed[0].array, x + x)
    assert [source.make.__name__ for source in simulator.launches] == ["dense_groups"]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_follows_a_convolution_has_the_bits_of_a_sum_and_a_relu_even_in_place(dtype):
    draw, shape = np.random.default_rng(1), (2, 7, 4, 5)
    y, bias = draw.standard_normal(shape), draw.standard_normal((7, 1, 1)).astype(np.promote_types(dtype, "float32"))
    y[0, 0, 0, :3] = -bias[0, 0, 0], np.nan, -np.inf
    results = []
    for names in (("add", "relu"), ("add_relu",)):
        memory = Memory(1 << 16)
        placed = [Placed(memory, shape, dtype, channels_last(shape), y), Placed(memory, bias.shape, bias.dtype.name,
                                                                               None, bias)]
        for name in names:
            operands = [placed[0], placed[0], placed[1]][:2 if name == "relu" else 3]
            KERNELS[name].issue(Simulator(memory), [p.address for p in operands], [p.meta for p in operands], {})
        results.append(placed[0].array.copy())
    assert results[0].tobytes() == results[1].tobytes()
    assert 0.2 < (results[0].astype(np.float64) > 0).mean() < 0.8 and results[0][0, 0, 0, 0] == 0


# Layouts in which an operation is fast, and operations that touch every byte of what is large just once: reads of each
# element of the inputs, writes of each of the outputs. Gradients of windows that overlap, and what is looked up by
# number, read some elements more than once, from the cache.
ONCE = {"add": ((70,), (70,)), "gelu": ((70,),), "relu_grad": ((70,), (70,)), "dropout": ((70,),), "sum_to": ((70, 6),),
        "bias_grad": ((70, 6),), "softmax": ((3, 70),), "softmax_grad": ((3, 70), (3, 70)),
        "layer_norm": ((3, 70), (70,), (70,)), "layer_norm_grad_reduce": ((30, 7), (30, 7), (30,), (30,)),
        "contiguous": ((6, 70),), "sgd_": ((70,), (70,)),
        "batch_norm": ((3, 5, 4, 4), (5,), (5,), (5,), ("+", (5,))),
        "batch_norm_add_relu": ((3, 5, 4, 4), (3, 5, 4, 4), (5,), (5,), (5,), ("+", (5,))),
        "batch_norm_grad_reduce": ((3, 5, 4, 4), (3, 5, 4, 4), (5,), ("+", (5,))),
        "batch_norm_relu_grad": ((3, 5, 4, 4), (3, 5, 4, 4), (5,), (5,), (5,), ("+", (5,)), (5,), (5,)),
        "max_pool2d": ((2, 3, 6, 6),)}
ATTRS = {"sum_to": {"shape": (1, 6)}, "bias_grad": {"axis": 1}, "sgd_": {"lr": 0.1},
         "dropout": {"p": 0.5, "seed": 1}}


@pytest.mark.parametrize("layout", [None, channels_last])
@pytest.mark.parametrize("name", ONCE)
def test_each_byte_is_moved_once(name, layout):
    attrs = ATTRS.get(name) or next(c.attrs for c in HERE if c.name == name)
    inputs = Case(name, ONCE[name], lambda: None).inputs("float32")
    if layout is not None and not any(a.ndim == 4 for a in inputs):
        return
    _, memory, operands, _ = call(name, inputs, attrs, layout=layout, counting=True)
    largest = max(p.meta.size for p in operands)
    outputs = len(operands) - len(inputs)
    for i, p in enumerate(operands):
        at = p.address - memory.base
        if i < outputs:
            assert (memory.writes[at:at + p.meta.nbytes] == 1).all() and not memory.reads[at:at + p.meta.nbytes].any()
        elif p.meta.size * 2 > largest:
            assert (memory.reads[at:at + p.meta.nbytes] == 1).all(), f"operand {i}"


def test_rows_too_long_for_registers_are_right_too():
    rng = np.random.default_rng(1)
    width = 16 * 16 + 3  # a block of 16 threads holds 16 elements each
    x, dy = rng.standard_normal((2, 2, width)).astype(np.float32)
    gamma, beta = rng.standard_normal((2, width)).astype(np.float32)
    labels = np.array([1, width - 1])
    mean, rstd = rng.standard_normal(2).astype(np.float32), np.ones(2, np.float32)
    for name, inputs, attrs in (("softmax", [x], {}), ("softmax", [x, beta], {}), ("softmax_grad", [dy, x], {}),
                                ("layer_norm", [x, gamma, beta], {"eps": 1e-3}), ("cross_entropy", [x, labels], {}),
                                ("layer_norm_grad", [dy, x, gamma, mean, rstd], {})):
        case = next(c for c in HERE if c.name == name)
        check(Case(name, (), case.reference, attrs), call(name, inputs, attrs), inputs, "float32")
    hidden = x.copy()
    hidden[0, :40] = -np.inf  # some threads see nothing else at first
    assert np.isfinite(call("softmax", [hidden], {})[0]).all()


def test_more_dimensions_than_a_kernel_walks_over_take_more_launches_or_a_copy():
    rng = np.random.default_rng(1)
    shape = (2, 3, 2, 2, 3, 2)
    x = rng.standard_normal(shape).astype(np.float32)
    for name, attrs, right in (("neg", {}, -x), ("contiguous", {}, x), ("sum_to", {"shape": (2, 1, 2, 1, 3, 1)},
                                                                        x.sum((1, 3, 5), keepdims=True)),
                               ("dropout", {"p": 0.5, "seed": 3}, call("dropout", [x], {"p": 0.5, "seed": 3})[0]),
                               ("softmax", {}, np.exp(x) / np.exp(x).sum(-1, keepdims=True))):
        result = call(name, [x], attrs, layout=reversed_in_wider)[0]
        np.testing.assert_allclose(result.reshape(right.shape), right, rtol=1e-5)


def test_sums_of_integers_are_int64_and_those_of_halves_may_be_float32():
    found = call("sum_to", [np.array([[200, 255, 7], [1, 2, 3]], np.uint8)], {"shape": (2, 1)})[0]
    assert found.dtype == np.int64 and found.reshape(2).tolist() == [462, 6]
    halves = np.full((3, 70), 1024.0, np.float16)  # of which 70 are more than float16 holds
    found = call("sum_to", [halves], {"shape": (3, 1), "dtype": float32})[0]
    assert found.dtype == np.float32 and found.reshape(3).tolist() == [71680.0] * 3


def test_masks_of_dropout_do_not_depend_on_the_layout():
    x = np.ones((2, 3, 4, 5), np.float32)
    attrs = {"p": 0.5, "seed": 9}
    plain = call("dropout", [x], attrs)[0]
    for layout in (channels_last, reversed_in_wider):  # two and four dimensions to walk over
        assert plain.tobytes() == call("dropout", [x], attrs, layout=layout)[0].copy(order="C").tobytes()
    assert 0 < (plain > 0).sum() < x.size


def test_a_label_or_a_number_that_is_none_gives_nan_and_reads_nothing_outside():
    logits = np.zeros((3, 4), np.float32)
    labels = np.array([1, 4, -1])
    loss, residual = call("cross_entropy", [logits, labels], {})
    assert np.isnan(loss) and residual.tolist() == [[0.25, -0.75, 0.25, 0.25], [0.25] * 4, [0.25] * 4]
    dx = call("cross_entropy_grad", [np.ones((), np.float32), residual, labels], {})[0]
    assert np.isfinite(dx[0]).all() and np.isnan(dx[1:]).all()
    ids = np.array([0, 5, -1, 4])
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    y = call("embedding", [table, ids], {})[0]
    assert y[[0, 3]].tolist() == [[0, 1], [8, 9]] and np.isnan(y[1:3]).all()
    dw = call("embedding_grad", [np.ones((4, 2), np.float32), ids], {"rows": 5})[0]
    assert dw[:, 0].tolist() == [1, 0, 0, 0, 1]


def test_a_batch_in_which_every_label_is_ignored_has_no_mean_and_no_gradient():
    ignored = np.full(2, -100)
    loss, residual = call("cross_entropy", [np.zeros((2, 3), np.float32), ignored], {})
    assert np.isnan(loss) and (residual == np.float32(1 / 3)).all()
    assert not call("cross_entropy_grad", [np.full((), np.inf, np.float32), residual, ignored], {})[0].any()


@pytest.mark.parametrize(("shape", "axes"), [((9, 7), (1, 0)), ((2, 9, 5), (0, 2, 1)), ((2, 3, 6, 9), (3, 1, 2, 0)),
                                             ((2, 2, 5, 2, 6), (4, 1, 3, 0, 2))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transposition_goes_through_tiles_and_moves_each_byte_once(shape, axes, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    memory = Memory(1 << 16, counting=True)
    source = Placed(memory, shape, dtype, values=x)
    strides = tuple(source.meta.strides[a] for a in axes)
    view, result = meta(tuple(shape[a] for a in axes), source.meta.dtype, strides), None
    result = Placed(memory, view.shape, dtype)
    for flipped in (False, True):
        simulator = Simulator(memory, flipped=flipped)
        KERNELS["contiguous"].issue(simulator, [result.address, source.address], [result.meta, view], {})
        np.testing.assert_array_equal(result.array, x.transpose(axes))
        assert {s.make.__name__ for s in simulator.launches} == {"transposed"}
    for p, counts in ((result, memory.writes), (source, memory.reads)):
        at = p.address - memory.base
        assert (counts[at:at + p.meta.nbytes] == 2).all()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 65, 100])
def test_rows_that_come_often_are_added_up_in_the_order_of_their_positions(count):
    ids = np.array([3, *[1] * count, 0, *[1] * 3])
    dy = np.random.default_rng(1).standard_normal((ids.size, 5)).astype(np.float32)
    dw = call("embedding_grad", [dy, ids], {"rows": 4})[0]
    right = np.zeros((4, 5))
    np.add.at(right, ids, dy.astype(np.float64))
    np.testing.assert_allclose(dw, right, rtol=1e-5, atol=1e-5)


def test_statistics_do_not_cancel_when_the_mean_is_large():
    x = (1000 + np.random.default_rng(1).standard_normal((8, 2, 10, 10))).astype(np.float32)
    for layout in (None, channels_last):
        mean, var = call("batch_norm_stats", [x], {}, layout=layout)
        np.testing.assert_allclose(mean, x.astype(np.float64).mean((0, 2, 3)), rtol=1e-6)
        np.testing.assert_allclose(var, x.astype(np.float64).var((0, 2, 3)), rtol=1e-4)
    rows = x.reshape(4, 400)
    rstd = call("layer_norm", [rows, np.ones(400, np.float32), np.zeros(400, np.float32)], {"eps": 0.0})[2]
    np.testing.assert_allclose(rstd, rows.astype(np.float64).std(1) ** -1, rtol=1e-4)


def test_max_pool_takes_the_first_of_equal_maxima_never_the_padding_and_the_first_nan():
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
    for value in (0.0, -5.0, -np.inf):
        y, index = call("max_pool2d", [np.full((1, 1, 4, 4), value)], window)
        assert (y == value).all() and index.tolist() == [[[[4, 3], [1, 0]]]]
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = np.nan
    y, index = call("max_pool2d", [x], {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0)})
    assert np.isnan(y).all() and index.tolist() == [[[[4, 3], [1, 0]]]]


def test_relu_passes_nan_and_its_gradient_does_not_multiply_infinity_by_zero():
    x = np.array([-1.0, 0.0, 2.0, np.nan])
    y = call("relu", [x], {})[0]
    np.testing.assert_array_equal(y, [0, 0, 2, np.nan])
    np.testing.assert_array_equal(call("relu_grad", [np.full(4, np.inf), y], {})[0], [0, 0, np.inf, np.inf])


def test_a_step_over_many_parameters_is_one_launch_for_each_combination_of_dtypes():
    shapes = [(3,), (70,), (2, 5), (130,)]
    rng = np.random.default_rng(1)
    params, grads = ([rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(2))
    attrs = {"lr": 0.5}
    results, _, _, simulator = call("sgd_", [*params, *grads], attrs, counting=True)
    assert len(simulator.launches) == simulator.uploads == 1
    for result, p, g in zip(results, params, grads, strict=True):
        np.testing.assert_allclose(result, p - 0.5 * g, rtol=1e-6)
    halves = [g.astype("bfloat16") for g in grads[:2]]
    results, _, _, simulator = call("sgd_", [*params, *halves, *grads[2:]], attrs, counting=True)
    assert len(simulator.launches) == 2
    np.testing.assert_allclose(results[1], params[1] - 0.5 * halves[1].astype(np.float32), rtol=1e-6)


def test_the_first_momentum_step_does_not_read_its_buffer():
    p, g = np.ones(3, np.float32), np.ones(3, np.float32)
    results = call("sgd_momentum_", [p, np.full(3, np.nan, np.float32), g], {"lr": 0.5, "momentum": 0.9, "first": True})
    assert results[0].tolist() == [0.5] * 3 and results[1].tolist() == [1] * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "attrs", "mean", "std"), [
    ("normal_", {"mean": 3.0, "std": 2.0}, 3.0, 2.0), ("uniform_", {"low": -1.0, "high": 5.0}, 2.0, 6 / 12**0.5)])
def test_random_fills_follow_from_the_seed_alone_and_have_their_moments(name, attrs, mean, std, dtype):
    empty = np.zeros((40, 50), dtype)
    one = call(name, [empty], {"seed": 1, **attrs})[0]
    # Five standard errors: std / sqrt(2000) of the mean, and at most 2 / sqrt(2 * 2000) of the deviation.
    values = one.astype(np.float64)
    assert abs(values.mean() - mean) < 5 * std / 2000**0.5 and abs(values.std() - std) < 5 * 2 / 4000**0.5
    strided = call(name, [empty], {"seed": 1, **attrs}, layout=reversed_in_wider)[0]
    assert strided.copy(order="C").tobytes() == one.tobytes()
    assert call(name, [empty], {"seed": 2, **attrs})[0].tobytes() != one.tobytes()
    assert dtype != "float32" or np.unique(one).size > 1990
    later = call(name, [np.zeros(7, one.dtype)], {"seed": 1, "start": 13, **attrs})[0]
    assert later.tobytes() == one.reshape(-1)[13:20].tobytes()
    if name == "uniform_":
        assert values.min() >= -1 and values.max() < 5


def test_uniform_numbers_stay_below_their_upper_end_even_when_rounding_would_reach_it():
    sample = call("uniform_", [np.zeros(100, np.float32)], {"seed": 1, "low": 1e8, "high": 1e8 + 8})[0]
    assert (sample == 1e8).all()  # float32 has nothing between 1e8 and 1e8 + 8


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even():
    top = np.arange(0, 1 << 16, 97, dtype=np.uint32) << 16
    values = np.concatenate([top + np.uint32(k) for k in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    tools = Simulator(Memory(1024)).tools
    load, store = tools.memory("bfloat16")
    bits = np.zeros(1, np.uint16)
    with np.errstate(all="ignore"):
        for value, right in zip(values, values.astype("bfloat16"), strict=True):
            store(bits, 0, value)
            assert bits[0] == right.view(np.uint16) or np.isnan(load(bits, 0)) == np.isnan(value) is np.True_


def test_the_simulator_sees_a_missing_barrier_and_an_access_between_tensors():
    memory = Memory(4096)
    simulator = Simulator(memory)
    cuda = simulator.cuda
    at = memory.take(16)

    def unguarded(y):
        held = cuda.shared.array(4, np.float32)
        held[cuda.threadIdx.x] = cuda.threadIdx.x
        y[cuda.threadIdx.x] = held[3 - cuda.threadIdx.x]

    def guarded(y):
        held = cuda.shared.array(4, np.float32)
        held[cuda.threadIdx.x] = cuda.threadIdx.x
        cuda.syncthreads()
        y[cuda.threadIdx.x] = held[3 - cuda.threadIdx.x]

    def divergent(y):
        if cuda.threadIdx.x < 2:
            cuda.syncthreads()
    span = Span(memory, at, "float32")
    simulator.run(guarded, 1, 4, [span])
    assert memory.bytes[:16].view(np.float32).tolist() == [3, 2, 1, 0]
    simulator.run(unguarded, 1, 4, [span])
    assert np.isnan(memory.bytes[:16].view(np.float32)).any()
    with pytest.raises(AssertionError, match="barrier"):
        simulator.run(divergent, 1, 4, [span])
    for index in (4, -1):
        with pytest.raises(IndexError):
            span[index]


def test_planning_kernels_imports_neither_numba_nor_cuda():
    program = ("import sys, minidl.kernels.cuda as c\n"
               "assert not {'numba', 'cuda', 'cupy', 'llvmlite'} & set(sys.modules), 'loaded'")
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.slow
def test_numbas_own_simulator_agrees():
    program = Path(__file__).parents[1] / "support" / "cuda_numba_simulator.py"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1",
                   "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True,
                            check=False)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 12


def test_calls_that_differ_in_size_alone_share_their_machine_code():
    sources = {KERNELS["neg"].prepare([meta((n,))] * 2, {}).launches[0].source for n in (70, 131)}
    assert len(sources) == 1
    assert KERNELS["neg"].prepare([meta((70,), metas.bfloat16)] * 2, {}).launches[0].source not in sources


def test_rows_of_a_layer_norm_lie_as_its_mean_does_where_the_input_lies_channels_last():
    """On the device mean and rstd of an image are in C order, whatever the order of the image."""
    values = np.random.default_rng(1).standard_normal((2, 3, 4, 8)).astype(np.float32)
    x = meta(values.shape, float32, channels_last(values.shape))
    vector = meta((8,), float32)
    inferred = OPS["layer_norm"].infer(x, vector, vector, eps=1e-5)
    described = [*memory_format.outputs("layer_norm", (x, vector, vector), inferred), x, vector, vector]
    memory = Memory(1 << 16)
    placed = [Placed(memory, m.shape, "float32", m.strides, 0) for m in described]
    placed[3].array[...], placed[4].array[...] = values, 1
    KERNELS["layer_norm"].issue(Simulator(memory), [p.address for p in placed], described, {"eps": 1e-5})
    np.testing.assert_allclose(placed[1].array, values.mean(-1), rtol=1e-5, atol=1e-6)
