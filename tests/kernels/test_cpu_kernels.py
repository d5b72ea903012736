"""Every CPU kernel against a plain float64 formula: block edges, strided inputs, donated outputs, both dtypes.

Blocks are made tiny (64 elements of 4 bytes), so that small arrays have several of them, with ragged ends.
"""

import tracemalloc

import numpy as np
import pytest
from cpu_kernel_calls import call, describe, poisoned, same_bytes_over_an_input, strided, workspace

from bench.support.kernel_cases import BLOCK, CASES, OPS, RANDOM, Case
from minidl.errors import UserError
from minidl.kernels.cpu import ALGORITHMS, KERNELS, blocks, conv, update
from minidl.kernels.random import fold_seed, random_bits

# The result of n float32 additions or of a library's exp is off by some units in the last place, not by more.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch, request):
    if "real_blocks" not in request.fixturenames:
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 4 * BLOCK)
        monkeypatch.setattr(conv, "PIXELS", 20)


@pytest.fixture
def real_blocks():
    """Blocks of their real size."""


def check(case, results, inputs, dtype):
    expected = case.reference(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs), **case.attrs)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    for result, right in zip(results, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(right), initial=0)))
        np.testing.assert_allclose(result, right, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def test_every_operation_that_is_not_a_view_has_a_kernel_and_a_case():
    names = {name for name, op in OPS.items() if not op.view}
    assert set(KERNELS) == names
    assert {c.name for c in CASES} | RANDOM == names
    assert set(ALGORITHMS) == {"conv2d", "conv2d_relu", "conv2d_dgrad", "conv2d_wgrad"}


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_equals_the_formula_on_contiguous_and_on_strided_inputs(case, dtype):
    inputs = case.inputs(dtype)
    check(case, call(case.name, inputs, case.attrs), inputs, dtype)
    layouts = [strided(a) for a in inputs]
    check(case, call(case.name, layouts, case.attrs), inputs, dtype)


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", [c for c in CASES if OPS[c.name].donates], ids=str)
def test_an_output_over_an_input_has_the_same_bytes_wherever_the_engine_may_put_it_there(case, dtype):
    same_bytes_over_an_input(case, dtype)


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("pixels", [1, 20, 100])  # tiles of one row; of several; of several images
@pytest.mark.parametrize("case", [c for c in CASES if c.name in ALGORITHMS], ids=str)
def test_convolutions_of_one_class_have_the_same_bytes_and_all_are_right(case, pixels, dtype, monkeypatch):
    monkeypatch.setattr(conv, "PIXELS", pixels)
    contiguous = case.inputs(dtype)
    for inputs in (contiguous, [strided(a) for a in contiguous]):
        bits: dict[str, set[bytes]] = {}
        inferred = OPS[case.name].infer(*map(describe, inputs), **case.attrs)
        for algorithm in ALGORITHMS[case.name]:
            if algorithm.name == "direct" and inputs is not contiguous and dtype == "float64":
                continue  # compiled anew for every layout and dtype: three of the four will do
            space = workspace(algorithm.workspace([describe(a) for a in inputs], [inferred], case.attrs))
            result = call(case.name, inputs, case.attrs,
                          kernel=lambda *a, run=algorithm.run, s=space, **k: run(*a, workspace=s, **k))
            check(case, result, contiguous, dtype)
            bits.setdefault(algorithm.bits_class, set()).add(result[0].tobytes())
        assert all(len(variants) == 1 for variants in bits.values())


def test_max_pool_takes_the_first_of_equal_maxima_and_never_the_padding():
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
    for value in (0.0, -5.0, -np.inf):
        y, index = call("max_pool2d", [np.full((1, 1, 4, 4), value)], window)
        assert (y == value).all()
        # The first tap of each window inside the image: (1, 1) = 4 at the corner, (1, 0) = 3, (0, 1) = 1, (0, 0) = 0.
        assert index.tolist() == [[[[4, 3], [1, 0]]]]
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = np.nan
    y, index = call("max_pool2d", [x], {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0)})
    assert np.isnan(y).all() and index.tolist() == [[[[4, 3], [1, 0]]]]


def test_relu_and_its_gradient_pass_nan_and_do_not_multiply_infinity_by_zero():
    x = np.array([-1.0, 0.0, 2.0, np.nan])
    y = call("relu", [x], {})[0]
    np.testing.assert_array_equal(y, [0, 0, 2, np.nan])
    np.testing.assert_array_equal(call("relu_grad", [np.full(4, np.inf), y], {})[0], [0, 0, np.inf, np.inf])


def test_extreme_values_are_values_and_not_warnings():
    x = np.array([-1e4, 1e4, 0.0], np.float32)
    np.testing.assert_array_equal(call("sigmoid", [x], {})[0], np.array([0, 1, 0.5], np.float32))
    np.testing.assert_array_equal(call("log", [np.zeros(1, np.float32)], {})[0], [-np.inf])
    loss, residual = call("cross_entropy", [np.array([[1e4, -1e4]], np.float32), np.array([1])], {})
    assert loss == 2e4 and residual.tolist() == [[1, -1]]


def test_statistics_do_not_cancel_when_the_mean_is_large():
    x = (1000 + np.random.default_rng(1).standard_normal((8, 2, 30, 30))).astype(np.float32)
    var = call("batch_norm_stats", [x], {})[1]  # sums of squares in float32 would be off by several percent
    np.testing.assert_allclose(var, x.astype(np.float64).var((0, 2, 3)), rtol=1e-5)


def test_long_sums_are_accumulated_in_float64():
    x = np.full((200_000, 2), 0.1, np.float32)  # added up in float32, the error passes 1e-3
    for name, attrs in (("sum_to", {"shape": (1, 2)}), ("bias_grad", {"axis": 1})):
        total = call(name, [x], attrs)[0].reshape(2)
        np.testing.assert_allclose(total, 200_000 * np.float64(np.float32(0.1)), rtol=1e-7)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_a_label_that_is_no_class_is_the_users_error(labels):
    with pytest.raises(UserError, match=f"labels from {min(labels)} to {max(labels)} for 3 classes"):
        call("cross_entropy", [np.zeros((2, 3)), np.array(labels)], {})


def test_softmax_of_large_numbers_and_of_masked_rows_is_finite():
    x = np.array([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]], np.float32)
    assert call("softmax", [x], {})[0].tolist() == [[1, 0, 0], [np.float32(1 / 3)] * 3]
    masked = call("softmax", [np.zeros((1, 3), np.float32), np.array([0, -1e4, 0], np.float32)], {})[0]
    assert masked.tolist() == [[0.5, 0, 0.5]]


def test_gelu_does_not_cancel_far_below_zero():
    y = call("gelu", [np.array([-10.0])], {})[0]
    np.testing.assert_allclose(y, [-10 * 7.619853024160527e-24], rtol=1e-12)  # the normal distribution's tail at -10


def test_layer_norm_does_not_cancel_when_the_mean_is_large():
    x = (1000 + np.random.default_rng(1).standard_normal((4, 900))).astype(np.float32)
    y, _, rstd = call("layer_norm", [x, np.ones(900, np.float32), np.zeros(900, np.float32)], {"eps": 0.0})
    np.testing.assert_allclose(rstd, x.astype(np.float64).std(1) ** -1, rtol=1e-5)
    np.testing.assert_allclose(y.std(1), 1, rtol=1e-5)


def test_a_batch_in_which_every_label_is_ignored_has_no_mean_and_no_gradient():
    ignored = np.full(2, -100)
    loss, residual = call("cross_entropy", [np.zeros((2, 3)), ignored], {})
    assert np.isnan(loss) and (residual == 1 / 3).all()
    assert not call("cross_entropy_grad", [np.ones(()), residual, ignored], {})[0].any()


@pytest.mark.parametrize(("name", "source", "ids"), [("embedding", (3, 2), [0, 3]), ("embedding", (3, 2), [-1, 0]),
                                                     ("gather_rows", (2, 3, 1), [[0, 3], [1, 1]])])
def test_a_number_that_is_no_row_is_the_users_error(name, source, ids):
    with pytest.raises(UserError, match=f"{name}: row numbers from {np.min(ids)} to {np.max(ids)} for 3 rows"):
        call(name, [np.zeros(source), np.array(ids)], {})


@pytest.mark.parametrize("block", [1, BLOCK, 1 << 20])
def test_rows_that_come_often_are_added_up_with_little_rounding(block, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 8 * block)
    ids = np.zeros(3000, np.int64)
    dw = call("embedding_grad", [np.full((3000, 2), 0.1, np.float32), ids], {"rows": 1})[0]
    np.testing.assert_allclose(dw, 3000 * np.float64(np.float32(0.1)), rtol=1e-5 if block > 2 else 1e-3)


def test_the_first_momentum_step_does_not_read_its_buffer():
    p, g, buf = np.ones(3), np.ones(3), poisoned((3,), "float64")
    update.sgd_momentum_(p, buf, g, lr=0.5, momentum=0.9, first=True)
    assert p.tolist() == [0.5] * 3 and buf.tolist() == [1] * 3


@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "attrs", "mean", "std"), [
    ("normal_", {"mean": 3.0, "std": 2.0}, 3.0, 2.0), ("uniform_", {"low": -1.0, "high": 5.0}, 2.0, 6 / 12**0.5)])
def test_random_fills_follow_from_the_seed_alone_and_have_their_moments(name, attrs, mean, std, dtype, monkeypatch):
    empty = poisoned((40_000,), dtype)
    one = call(name, [empty], {"seed": 1, **attrs})[0]
    # Five standard errors: std / sqrt(40000) of the mean, and at most 2 / sqrt(2 * 40000) of the deviation.
    assert abs(one.mean() - mean) < 5 * std / 200 and abs(one.std() - std) < 5 * 2 / 80_000**0.5
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 20)
    assert call(name, [empty], {"seed": 1, **attrs})[0].tobytes() == one.tobytes()
    assert call(name, [empty], {"seed": 2, **attrs})[0].tobytes() != one.tobytes()
    later = call(name, [empty[:5_001]], {"seed": 1, "start": 20_003, **attrs})[0]
    assert later.tobytes() == one[20_003:25_004].tobytes()
    if name == "uniform_":
        assert one.min() >= -1 and one.max() < 5


def test_uniform_numbers_stay_below_their_upper_end_even_when_rounding_would_reach_it():
    sample = call("uniform_", [poisoned((100,), "float32")], {"seed": 1, "low": 1e8, "high": 1e8 + 8})[0]
    assert (sample == 1e8).all()  # float32 has nothing between 1e8 and 1e8 + 8


def test_dropout_keeps_its_share_and_masks_of_neighbouring_seeds_are_independent():
    ones = np.ones(100_000, np.float32)
    first, again, other = (call("dropout", [ones], {"p": 0.25, "seed": s})[0] for s in (3, 3, 4))
    assert first.tobytes() == again.tobytes()
    kept = first > 0
    assert np.unique(first).tolist() == [0, np.float32(4 / 3)]
    assert abs(kept.mean() - 0.75) < 5 * (0.25 * 0.75 / 1e5) ** 0.5
    both = (kept & (other > 0)).mean()  # 0.5625 if independent
    assert abs(both - 0.75**2) < 5 * (0.5625 * 0.4375 / 1e5) ** 0.5
    assert len({fold_seed(s) for s in (0, 1, 2, 2**32, 2**32 + 1, 2**64)}) == 6


def test_random_bits_are_the_same_for_integers_arrays_and_compiled_code():
    import numba
    compiled = numba.njit(random_bits)
    positions = [0, 1, 2, 12345, 2**31, 2**32 - 1]
    plain = [random_bits(0xDEADBEEF, i) for i in positions]
    assert random_bits(0xDEADBEEF, np.array(positions, np.uint32)).tolist() == plain
    assert [int(compiled(np.uint32(0xDEADBEEF), np.uint32(i))) & 0xFFFFFFFF for i in positions] == plain


FLAT, IMAGES, CHANNELS, ROWS = (2, 1 << 20), (8, 16, 128, 128), (16,), (2048, 1024)  # 8 MiB each but the third
WORDS = (2, 1024, 256)
HEADS = {"heads": 4, "causal": False, "p": 0.1, "seed": 1}
LARGE = {  # nothing of that size may be allocated beside the outputs
    "relu_grad": (FLAT, FLAT), "tanh_grad": (FLAT, FLAT), "sqrt_grad": (FLAT, FLAT), "sigmoid": (FLAT,),
    "dropout": (FLAT,), "sum_to": (FLAT,), "normal_": (FLAT,), "linear_wgrad": (FLAT, (2, 1)),
    "sgd_momentum_": (FLAT,) * 3, "adam_": (FLAT,) * 4, "cross_entropy_grad": ((), (2048, 1024), ("i9", (2048,))),
    "batch_norm_stats": (IMAGES,), "batch_norm": (IMAGES, *(CHANNELS,) * 4),
    "batch_norm_grad_reduce": (IMAGES, IMAGES, CHANNELS, CHANNELS),
    "batch_norm_grad": (IMAGES, IMAGES, *(CHANNELS,) * 5), "bias_grad": (IMAGES,), "max_pool2d": (IMAGES,),
    "avg_pool2d": (IMAGES,), "conv2d": (IMAGES, (16, 16, 3, 3)),
    # 16 MiB of scores for each sequence
    "scaled_dot_product_attention": (WORDS,) * 3,
    "scaled_dot_product_attention_grad": (WORDS,) * 5 + ((2, 4, 1024),),
    "gelu": (FLAT,), "gelu_grad": (FLAT, FLAT), "softmax": (ROWS, (1, 1024)), "softmax_grad": (ROWS, ROWS),
    "cross_entropy": (ROWS, ("g9", (2048,))), "layer_norm": (ROWS, (1024,), (1024,)),
    "layer_norm_grad_reduce": (ROWS, ROWS, (2048,), (2048,)),
    "layer_norm_grad": (ROWS, ROWS, (1024,), (2048,), (2048,)),
    "embedding": ((9, 1024), ("i9", (2048,))), "embedding_grad": (ROWS, ("i9", (2048,))),
    "gather_rows": ((4, 9, 1024), ("i9", (4, 512))), "gather_rows_grad": (ROWS, ("i9", (4, 512))),
    "add_rows": (ROWS, ("i9", (4, 512))),
}
LARGE_ATTRS = {"scaled_dot_product_attention": HEADS, "scaled_dot_product_attention_grad": HEADS,
               "sum_to": {"shape": (1, 1 << 20)}, "conv2d": {"stride": (1, 1), "padding": (1, 1)},
               "normal_": {"seed": 1, "mean": 0.0, "std": 1.0}, "bias_grad": {"axis": 1},
               "embedding_grad": {"rows": 9}, "gather_rows_grad": {"x_shape": (4, 9, 1024)},
               "add_rows": {"x_shape": (4, 9, 1024)}}


@pytest.mark.parametrize("name", LARGE)
def test_no_kernel_allocates_large_temporaries_behind_the_arena(name, real_blocks):
    attrs = LARGE_ATTRS.get(name) or next(c.attrs for c in CASES if c.name == name)
    inputs = Case(name, LARGE[name], lambda: None).inputs("float32")
    op = OPS[name]
    inferred = () if op.mutates else op.infer(*map(describe, inputs), **attrs)
    outputs = [poisoned(m.shape, m.dtype.name) for m in (inferred if isinstance(inferred, tuple) else (inferred,))]
    KERNELS[name](*outputs, *inputs, **attrs)  # compilation takes memory, too
    tracemalloc.start()
    try:
        KERNELS[name](*outputs, *inputs, **attrs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20, f"{peak / 2**20:.1f} MiB"
