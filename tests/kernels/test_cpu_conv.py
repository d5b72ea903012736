"""Convolutions and matrix products of the CPU: every way of cutting them, against float64 formulas."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from bench.support.formulas import conv_ref, conv_relu_ref, dgrad_ref, wgrad_ref
from minidl.kernels.cpu import ALGORITHMS, KERNELS, conv, linear, vectors
from minidl.kernels.cpu.cuts import even, pieces, up
from minidl.kernels.cpu.flat import computed
from minidl.meta import DTYPES, meta

REFERENCES = {"conv2d": conv_ref, "conv2d_relu": conv_relu_ref, "conv2d_dgrad": dgrad_ref, "conv2d_wgrad": wgrad_ref}
FORWARD = ("conv2d", "conv2d_relu")
# (N, C, H, W), (K, R, S) or (K, R, S, groups), stride, padding: planes of less and more than a vector and a panel,
# tiles of several images and pieces of one, windows larger than the image, taps that fall outside of it altogether,
# rows that are left over.
SHAPES = [
    ((3, 5, 7, 7), (9, 3, 3), (1, 1), (1, 1)),
    ((2, 3, 17, 19), (8, 3, 3), (1, 1), (1, 1)),
    ((1, 2, 33, 31), (17, 5, 5), (1, 1), (2, 2)),
    ((2, 3, 21, 20), (7, 7, 7), (2, 2), (3, 3)),
    ((2, 9, 16, 16), (16, 1, 1), (1, 1), (0, 0)),
    ((5, 4, 9, 8), (8, 1, 1), (2, 2), (0, 0)),
    ((20, 6, 2, 2), (33, 3, 3), (1, 1), (1, 1)),
    ((4, 1, 3, 40), (1, 2, 3), (1, 3), (0, 2)),
    ((2, 2, 6, 5), (3, 3, 3), (2, 1), (3, 0)),
    # Groups of channels, the last number of the second entry: as narrow as one channel, wider than a block of results.
    ((2, 6, 9, 8), (9, 3, 3, 3), (1, 1), (1, 1)),
    ((3, 8, 7, 7), (40, 3, 2, 4), (2, 1), (1, 0)),
    ((9, 5, 3, 3), (10, 1, 1, 5), (1, 1), (0, 0)),
    ((1, 1, 1, 1), (1, 5, 5), (1, 1), (2, 2)),
    ((2, 2, 12, 50), (4, 3, 3), (1, 1), (0, 0)),
    ((2, 3, 9, 9), (4, 3, 3), (1, 2), (0, 1)),  # from the end of a row to the next less than a step
]
ROUNDING = {"float32": 0, "float64": 0, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # of what is stored
LIMITS = [(conv.BUFFER_BYTES, conv.DEPTH, conv.PIXELS), (1, 1, 1), (5000, 20, 50), (700, 9, 17)]
# For tiles of 2 x 2: planes of whole tiles and of odd size, groups that end within an image, more channels than a
# chunk and than a block, padding of none to two.
TILED = [((3, 5, 8, 8), (9, 3, 3), (1, 1), (1, 1)), ((2, 33, 17, 18), (40, 3, 3), (1, 1), (1, 1)),
         ((1, 3, 18, 17), (5, 3, 3), (1, 1), (0, 2)), ((2, 70, 18, 6), (3, 3, 3), (1, 1), (0, 0)),
         ((40, 2, 2, 2), (37, 3, 3), (1, 1), (1, 1)), ((1, 17, 4, 62), (70, 3, 3), (1, 1), (2, 1)),
         ((3, 9, 6, 6), (24, 3, 3, 3), (1, 1), (1, 1))]


def arrays(op, shapes, dtype, onto=False):
    x, (k, r, s, *groups), stride, padding = shapes
    y = (x[0], k, *((e + 2 * p - t) // d + 1 for e, t, d, p in zip(x[2:], (r, s), stride, padding, strict=True)))
    w = (k, x[1] // (groups or [1])[0], r, s)
    rng = np.random.default_rng(1)
    window = {"stride": stride, "padding": padding, "groups": (groups or [1])[0]}
    sizes, out, attrs = {
        "conv2d": ([x, w], y, {}), "conv2d_relu": ([x, w], y, {}),
        "conv2d_dgrad": ([y, w] + [x] * onto, x, {"x_shape": x}),
        "conv2d_wgrad": ([y, x], w, {"kernel": (r, s)})}[op]
    return [rng.standard_normal(s).astype(dtype) for s in sizes], out, {**attrs, **window}


def spread_out(array):
    """The same values with gaps between rows and images, and the dimensions of the image in another order."""
    wide = np.full((array.shape[0], array.shape[2], array.shape[3] + 3, array.shape[1] + 2), np.nan, array.dtype)
    view = wide[:, :, 1:-2, 1:-1].transpose(0, 3, 1, 2)
    view[...] = array
    return view


def run(algorithm, out, inputs, attrs):
    dtype = DTYPES[inputs[0].dtype.name]
    nbytes = algorithm.workspace([meta(a.shape, dtype) for a in inputs], [meta(out, dtype)], attrs)
    result = np.full(out, np.nan, inputs[0].dtype)
    algorithm.run(result, *inputs, workspace=np.full(nbytes, 0xFF, np.uint8), **attrs)
    return result


def check(result, op, inputs, attrs):
    right = REFERENCES[op](*(a.astype(np.float64) for a in inputs), **attrs)
    # Sums of up to some hundred products of numbers about 1, each rounded: some units in the last place of the largest.
    # Halves are summed in float32, and rounded once.
    tolerance = 100 * np.finfo(computed(result.dtype)).eps * max(1.0, np.abs(right).max())
    np.testing.assert_allclose(result.astype(np.float64), right, rtol=ROUNDING[result.dtype.name], atol=tolerance)


@pytest.fixture
def tiled(monkeypatch):
    """Tiles wherever they are possible."""
    monkeypatch.setattr(conv, "LEAST", (1, 1, 1))


@pytest.mark.default(limits=LIMITS[1:2], dtype=["float32"])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("op", REFERENCES)
def test_convolutions_are_right_however_they_are_cut_and_whatever_the_layout(op, limits, dtype, monkeypatch):
    for name, value in zip(("BUFFER_BYTES", "DEPTH", "PIXELS"), limits, strict=True):
        monkeypatch.setattr(conv, name, value)
    for shapes in SHAPES:
        inputs, out, attrs = arrays(op, shapes, dtype)
        plain = run(ALGORITHMS[op][0], out, inputs, attrs)
        check(plain, op, inputs, attrs)
        strided = run(ALGORITHMS[op][0], out, [spread_out(a) for a in inputs], attrs)
        assert strided.tobytes() == plain.tobytes()


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("op", REFERENCES)
def test_convolutions_without_a_workspace_are_right_whatever_the_layout(op, dtype):
    for shapes in [*SHAPES, ((1, 1, 2, 600), (2, 1, 3), (1, 2), (0, 1))]:  # rows longer than direct.WIDTH
        inputs, out, attrs = arrays(op, shapes, dtype)
        for layouts in (inputs, [spread_out(a) for a in inputs]):
            check(run(ALGORITHMS[op][-1], out, layouts, attrs), op, inputs, attrs)


@pytest.mark.default(dtype=["float32"], op=["conv2d_relu", "conv2d_dgrad"])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("op", [*FORWARD, "conv2d_dgrad"])
def test_convolutions_by_tiles_are_right_and_have_the_same_bits_in_less_memory(op, dtype, tiled):
    for shapes in TILED:
        for third in (False, True):
            inputs, out, attrs = arrays(op, shapes, dtype, onto=third and op == "conv2d_dgrad")
            if third and op in FORWARD:
                inputs.append(np.arange(float(out[1])).astype(dtype))
            plan = conv.cut_of(op, *inputs[:2], np.empty(out, dtype), attrs["stride"], attrs["padding"])
            assert plan.winograd and plan.least.buffer <= plan.cuts.buffer
            plain = run(ALGORITHMS[op][0], out, inputs, attrs)
            check(plain, op, inputs, attrs)
            assert run(ALGORITHMS[op][1], out, [spread_out(a) if a.ndim == 4 else a for a in inputs],
                       attrs).tobytes() == plain.tobytes()
            if third and op == "conv2d_dgrad":
                over = inputs[2].copy()
                ALGORITHMS[op][0].run(over, *inputs[:2], over, **attrs)
                assert over.tobytes() == plain.tobytes()


@pytest.mark.parametrize("op", [*FORWARD, "conv2d_dgrad", "conv2d_wgrad"])
def test_a_convolution_declares_the_same_workspace_whatever_vectors_the_processor_has(op, monkeypatch):
    declared: dict[int, list[tuple[int, ...]]] = {}
    for vector_bytes in conv.VECTORS:
        monkeypatch.setattr(vectors, "VECTOR_BYTES", vector_bytes)
        conv._cut_of.cache_clear()
        conv._workspace.cache_clear()
        for shapes in (*SHAPES, *TILED):
            inputs, out, attrs = arrays(op, shapes, "float32")
            metas = [meta(a.shape) for a in inputs]
            plan = conv.cut_of(op, *metas[:2], meta(out), attrs["stride"], attrs["padding"])
            found = tuple([algorithm.workspace(metas, [meta(out)], attrs) for algorithm in ALGORITHMS[op][:2]])
            assert plan.lanes == vector_bytes // 4 and found[1] >= plan.least.buffer * plan.itemsize
            declared.setdefault(vector_bytes, []).append(found)
    conv._cut_of.cache_clear()
    assert declared[32] == declared[64] and any(nbytes for found in declared[32] for nbytes in found)


def test_sums_by_tiles_are_about_as_exact_as_plain_ones():
    inputs, out, attrs = arrays("conv2d", ((2, 128, 16, 16), (128, 3, 3), (1, 1), (1, 1)), "float32")
    right, errors = conv_ref(*(a.astype(np.float64) for a in inputs), **attrs), []
    for least in ((1, 1, 1), (10**9,) * 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conv, "LEAST", least)
            errors.append(np.sqrt(np.mean((run(ALGORITHMS["conv2d"][0], out, inputs, attrs) - right) ** 2)))
    assert errors[0] != errors[1] and errors[0] < 2 * errors[1]


@pytest.mark.parametrize("op", REFERENCES)
def test_the_number_of_threads_does_not_change_a_bit(op, tiled):
    for shapes in SHAPES + TILED:
        inputs, out, attrs = arrays(op, shapes, "float32")
        results = []
        for workers in (None, 1, 2, 3, 7):
            result = np.full(out, np.nan, np.float32)
            conv._run(op, workers, result, *inputs, **attrs)
            results.append(result.tobytes())
        assert len(set(results)) == 1


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_an_input_gradient_is_added_to_what_lies_there_or_elsewhere(shapes):
    for dtype, algorithm in product(ROUNDING, ALGORITHMS["conv2d_dgrad"]):
        inputs, out, attrs = arrays("conv2d_dgrad", shapes, dtype, onto=True)
        plain = run(algorithm, out, inputs, attrs)
        check(plain, "conv2d_dgrad", inputs, attrs)
        strided = run(algorithm, out, [*inputs[:2], spread_out(inputs[2])], attrs)
        assert strided.tobytes() == plain.tobytes()
        over = inputs[2].copy()
        algorithm.run(over, *inputs[:2], over, **attrs)
        assert over.tobytes() == plain.tobytes()


def test_a_bias_is_added_to_every_pixel_of_its_channel():
    for shapes, dtype in product(SHAPES, ROUNDING):
        inputs, out, attrs = arrays("conv2d", shapes, dtype)
        bias = np.arange(float(out[1])).astype(dtype)
        for algorithm in ALGORITHMS["conv2d"]:
            check(run(algorithm, out, [*inputs, bias], attrs), "conv2d", [*inputs, bias], attrs)


@pytest.mark.default(limits=LIMITS[2:3], dtype=["float32"])
@pytest.mark.parametrize("limits", [LIMITS[0], LIMITS[2]], ids=str)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_convolution_with_relu_has_the_bits_of_the_two_however_it_is_cut(dtype, limits, monkeypatch):
    for name, value in zip(("BUFFER_BYTES", "DEPTH", "PIXELS"), limits, strict=True):
        monkeypatch.setattr(conv, name, value)
    for shapes, least in (*((s, conv.LEAST) for s in SHAPES), *((s, (1, 1, 1)) for s in TILED)):
        monkeypatch.setattr(conv, "LEAST", least)
        inputs, out, attrs = arrays("conv2d", shapes, dtype)
        bias = np.linspace(-1, 1, out[1]).astype(dtype)
        inputs[0][0, 0, 0, 0] = np.nan
        inputs[0][-1, -1, -1, -1] = -np.inf
        for operands in (inputs, [*inputs, bias]):
            for alone, both in zip(ALGORITHMS["conv2d"], ALGORITHMS["conv2d_relu"], strict=True):
                expected = run(alone, out, operands, attrs)
                KERNELS["relu"](expected, expected.copy())
                assert run(both, out, operands, attrs).tobytes() == expected.tobytes(), (shapes, both.name)


def test_the_preferred_class_of_bits_has_an_algorithm_of_little_workspace_and_direct_needs_none():
    # ResNet-50's largest layers at a batch of 64: weights of 9 MB, images of 51 MB.
    for x, w, y in (((64, 512, 7, 7), (512, 512, 3, 3), (64, 512, 7, 7)),
                    ((64, 64, 56, 56), (256, 64, 1, 1), (64, 256, 56, 56))):
        attrs = {"stride": (1, 1), "padding": (w[2] // 2,) * 2}
        for op, inputs, out in (("conv2d", (x, w), y), ("conv2d_dgrad", (y, w), x), ("conv2d_wgrad", (y, x), w)):
            need = {a.name: a.workspace([meta(i) for i in inputs], [meta(out)], attrs)
                    for a in ALGORITHMS[op] if a.bits_class == ALGORITHMS[op][0].bits_class}
            assert min(need.values()) < 2 << 20, (op, need)
            assert ALGORITHMS[op][-1].workspace([meta(i) for i in inputs], [meta(out)], attrs) == 0


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_products_are_right_at_the_edges_of_tiles_panels_and_pieces(dtype):
    rng = np.random.default_rng(2)
    for m, n, k in ((1, 1, 1), (7, 15, 255), (8, 16, 256), (9, 17, 257), (33, 49, 5), (300, 250, 3), (2, 500, 513)):
        a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (n,)))
        turned = np.asfortranarray(a), np.asfortranarray(b)
        gaps = np.repeat(b, 2, axis=1)[:, ::2]
        y = np.full((m, n), np.nan, dtype)
        right = a.astype(np.float64) @ b.astype(np.float64)
        tolerance = {"rtol": ROUNDING[dtype], "atol": np.finfo(computed(y.dtype)).eps * 20 * k**0.5}
        for factors in ((a, b), (turned[0], b), (a, turned[1]), (turned[0], turned[1]), (a, gaps)):
            linear.matmul(y, *factors, transpose_a=False, transpose_b=False)
            np.testing.assert_allclose(y.astype(np.float64), right, **tolerance)
        linear.linear(y, a, np.ascontiguousarray(b.T), c)
        np.testing.assert_allclose(y.astype(np.float64), right + c.astype(np.float64), **tolerance)


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_weight_gradient_of_strided_rows_is_the_sum_over_all_of_them(dtype):
    rng = np.random.default_rng(3)
    dy, x = (rng.standard_normal(s).astype(dtype) for s in ((2, 3, 40, 9), (2, 3, 40, 50)))
    dw = np.full((9, 50), np.nan, dtype)
    linear.linear_wgrad(dw, spread_out(dy), spread_out(x))
    right = dy.reshape(-1, 9).T.astype(np.float64) @ x.reshape(-1, 50).astype(np.float64)
    np.testing.assert_allclose(dw.astype(np.float64), right, rtol=ROUNDING[dtype],
                               atol=500 * np.finfo(computed(dw.dtype)).eps)


def test_infinities_and_nan_pass_through_products_and_reach_only_their_own_results():
    a, b = np.ones((3, 2), np.float32), np.ones((2, 60), np.float32)
    a[1, 0], b[0, 50] = np.inf, np.nan
    y = np.empty((3, 60), np.float32)
    linear.matmul(y, a, b, transpose_a=False, transpose_b=False)
    assert np.isnan(y[:, 50]).all() and np.isinf(np.delete(y[1], 50)).all()
    assert (np.delete(y, 50, 1)[[0, 2]] == 2).all()


def test_cuts_are_even_and_cover_everything():
    for count in range(1, 70):
        for size in range(1, 70):
            assert pieces(count, size) == -(-count // size)
            assert pieces(count, even(count, size)) == pieces(count, size) and even(count, size) <= size
            assert up(count, size) % size == 0 and 0 <= up(count, size) - count < size


@pytest.mark.slow
def test_a_second_start_does_not_compile_again():
    program = """
import numpy as np
from minidl.kernels.cpu import conv, im2col, linear, matrices
x, w, y = np.ones((2, 3, 8, 8), "f"), np.ones((4, 3, 3, 3), "f"), np.empty((2, 4, 8, 8), "f")
attrs = {"stride": (1, 1), "padding": (1, 1)}
conv._run("conv2d", 2, y, x, w, **attrs)
conv._run("conv2d_dgrad", 2, x, y, w, **attrs)
conv._run("conv2d_wgrad", 2, w, y, x, **attrs)
linear.matmul(np.empty((3, 3)), np.ones((3, 3)), np.ones((3, 3)), transpose_a=False, transpose_b=False)
print(sum(sum(k.stats.cache_misses.values()) for k in (im2col.fprop, im2col.dgrad, im2col.wgrad, matrices.products)))
"""
    results = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
               for _ in range(2)]
    assert results[1].strip() == "0"
