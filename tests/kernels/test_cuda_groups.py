"""Kernels that move 16 bytes at once, in the simulator, beside the general ones, which are the reference.

A value that is computed from one place of each operand has the same bits by either; sums have their tolerance.
"""

import ml_dtypes  # noqa: F401 - the name bfloat16
import numpy as np
import pytest
from cuda_kernel_calls import Placed, call, channels_last, check, forget_prepared, make_blocks_tiny
from cuda_simulator import Memory, Simulator, Span

from bench.support.kernel_cases import CASES, Case
from minidl.errors import UserError
from minidl.kernels.cuda import KERNELS, fast
from minidl.kernels.cuda.fast import layernorm_groups
from minidl.meta import DTYPES, meta

EXACT = ("batch_norm", "batch_norm_relu", "batch_norm_add_relu", "batch_norm_grad", "batch_norm_relu_grad")
SUMS = ("batch_norm_stats", "batch_norm_grad_reduce", "batch_norm_relu_grad_reduce")
WIDTHS = {"float32": 4, "bfloat16": 8}  # elements of 16 bytes


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    make_blocks_tiny(monkeypatch)


def turn_off(monkeypatch, *families):
    """From here on these families of ``kernels.cuda.fast`` are not used."""
    monkeypatch.setattr(fast, "ON", fast.ON.difference(families))
    forget_prepared(monkeypatch)


def test_the_variable_turns_on_the_families_that_it_names():
    assert fast.chosen(None) == fast.chosen("all") == set(fast.FAMILIES) and fast.chosen("none") == set()
    assert fast.chosen("columns, pool") == {"columns", "pool"}
    with pytest.raises(UserError, match="^MINIDL_CUDA_FAST: 'pools' is no family of kernels; known: elements, "):
        fast.chosen("pools")


def case_of(name, plane):
    """A case of this operation whose maps have this shape, and their vectors its channels."""
    known = next(c for c in CASES if c.name == name and any(len(s) == 4 for s in c.shapes if isinstance(s, tuple)))

    def shape(s):
        if isinstance(s[0], str):
            return (s[0], shape(s[1]))
        return plane if len(s) == 4 else (plane[1],)
    return Case(name, tuple(shape(s) for s in known.shapes), known.reference, known.attrs)


# Channels of one group, of a tile, of two tiles with a ragged end; rows of one slab, and of several with a ragged end.
PLANES = ((2, 1, 1, 1), (2, 4, 3, 3), (2, 5, 3, 5))


@pytest.mark.default(groups=[5], dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("n", "groups", "h", "w"), PLANES)
@pytest.mark.parametrize("name", [*EXACT, *SUMS])
def test_maps_in_groups_of_channels_have_the_values_of_the_general_kernels(name, n, groups, h, w, dtype, monkeypatch):
    case = case_of(name, (n, groups * WIDTHS[dtype], h, w))
    inputs = case.inputs(dtype)
    found, memory, operands, simulator = call(name, inputs, case.attrs, layout=channels_last, counting=True)
    assert simulator.launches[0].make.__module__.endswith("batchnorm_rows")
    check(case, found, inputs, dtype)
    for p in operands:  # every byte of a map is moved once; a sum's first row is read again, for its origin
        if len(p.meta.shape) == 4 and name != "batch_norm_stats":
            at = p.address - memory.base
            moved = memory.reads[at:at + p.meta.nbytes] + memory.writes[at:at + p.meta.nbytes]
            assert (moved == 1).all()
    turn_off(monkeypatch, "batchnorm")
    general = call(name, inputs, case.attrs, layout=channels_last)
    if name in EXACT:
        assert [a.tobytes() for a in found] == [a.tobytes() for a in general]
    else:
        for a, b in zip(found, general, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("plane", "layout"), [((2, 6, 3, 3), channels_last), ((2, 8, 3, 3), None)])
def test_what_does_not_lie_in_groups_goes_the_general_way(plane, layout):
    case = case_of("batch_norm", plane)
    *_, simulator = call("batch_norm", case.inputs("float32"), case.attrs, layout=layout, counting=True)
    assert [source.make.__name__ for source in simulator.launches] == ["normalise"]


# Operands that are whole groups and those that are not; an input wider than the output, and narrower.
@pytest.mark.parametrize(("name", "count", "dtypes", "width"), [
    ("add", 264, ("float32", "float32"), 4), ("add", 264, ("bfloat16", "bfloat16"), 8),
    ("add", 262, ("float32", "float32"), 0), ("add", 260, ("bfloat16", "bfloat16"), 0),
    ("relu", 136, ("float16",), 0), ("neg", 8, ("float64",), 0)])
def test_dense_operands_are_moved_in_groups_where_they_are_whole_ones(name, count, dtypes, width):
    inputs = [np.random.default_rng(i).standard_normal(count).astype(dtype) for i, dtype in enumerate(dtypes)]
    found, *_, simulator = call(name, inputs, {}, counting=True)
    (source,) = simulator.launches
    assert dict(source.options).get("width", 0) == width
    right = {"add": np.add, "relu": lambda x: np.maximum(x, 0), "neg": np.negative}[name](
        *[x.astype(np.float64) for x in inputs])
    assert found[0].tobytes() == right.astype(np.float32).astype(dtypes[0]).tobytes() or dtypes[0] == "float64"


@pytest.mark.parametrize(("to", "origin", "width"), [("bfloat16", "float32", 4), ("float32", "bfloat16", 4)])
def test_a_cast_moves_as_many_elements_as_the_wider_side_has_in_16_bytes(to, origin, width):
    x = np.random.default_rng(1).standard_normal(128).astype(origin)
    found, *_, simulator = call("cast", [x], {"dtype": DTYPES[to]}, counting=True)
    assert dict(simulator.launches[0].options)["width"] == width
    assert found[0].tobytes() == x.astype(to).tobytes()


def test_what_begins_within_a_group_is_moved_element_by_element():
    memory, values = Memory(1 << 14), np.arange(64, dtype=np.float32)
    whole, y = Placed(memory, (64,), "float32", values=values), Placed(memory, (32,), "float32")
    for offset, made in ((4, "dense_groups"), (2, "dense")):
        simulator = Simulator(memory)
        part = meta((32,), DTYPES["float32"], (1,), offset)
        KERNELS["neg"].issue(simulator, [y.address, whole.address], [y.meta, part], {})
        assert simulator.launches[0].make.__name__ == made
        assert (y.array == -values[offset:offset + 32]).all()


# Windows that overlap, that leave gaps, and that reach beyond two edges; equal maxima, NaN and windows of -inf alone.
# Where they reach too far, or stand too far apart, gradients are a pixel's at a time; so is a row of one window.
@pytest.mark.default(dtype=["float32"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("size", "stride", "padding", "forwards", "backwards"), [
    ((3, 3), (2, 2), (1, 1), "pool_windows", "pool_tiles"), ((2, 3), (3, 2), (0, 1), "pool_windows", "pool_tiles"),
    ((3, 2), (1, 3), (1, 0), "pool_windows", "pool_tiles"), ((2, 3), (4, 12), (0, 1), "pool_groups", "pool_groups"),
    ((6, 2), (1, 1), (1, 0), "pool_windows", "pool_groups")])
def test_pooling_of_groups_of_channels_has_the_bits_of_the_general_kernels(size, stride, padding, forwards, backwards,
                                                                          dtype, monkeypatch):
    x = np.random.default_rng(1).integers(-3, 4, (2, 2 * WIDTHS[dtype], 5, 11)).astype(dtype)
    x[0, 1, 2:5, 1:4], x[1, :, 3, 2], x[1, 3, :3, :6] = 3, np.nan, -np.inf
    attrs = {"kernel": size, "stride": stride, "padding": padding}
    both = []
    for forth, back, off in ((forwards, backwards, ("pool-windows", "pool-tiles")),
                             ("pool_groups", "pool_groups", ("pool",)), ("pool", "pool", ())):
        y, index, _ = both_ways("max_pool2d", [x], attrs, forth)
        dy = np.random.default_rng(2).standard_normal(y.shape).astype(dtype)
        dx, _ = both_ways("max_pool2d_grad", [dy, index], {"x_shape": x.shape, **attrs}, back)
        mean, _ = both_ways("avg_pool2d_grad", [dy], {"x_shape": x.shape, **attrs}, back)
        means, _ = both_ways("avg_pool2d", [x], attrs, forth)
        both.append([a.tobytes() for a in (y, index, dx, mean, means)])
        turn_off(monkeypatch, *off)
    assert both[0] == both[1] == both[2]


def both_ways(name, inputs, attrs, made):
    results, *_, simulator = call(name, inputs, attrs, layout=channels_last, counting=True)
    assert [source.make.__module__.rpartition(".")[2] for source in simulator.launches] == [made]
    return *[a.copy() for a in results], simulator


# Rows by one lane, by two with a ragged end, by all sixteen threads of a block; more rows than a block has.
@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (35, 3), (9, 11), (3, None)])
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_grad"])
def test_rows_of_groups_have_the_values_of_the_formulas(name, rows, groups, dtype, monkeypatch):
    wide = groups * WIDTHS[dtype] if groups else 16 * layernorm_groups.HELD
    known = next(c for c in CASES if c.name == name)
    draw = np.random.default_rng(1)
    x, dy = draw.standard_normal((2, rows, wide)).astype(dtype)
    gamma, beta = draw.standard_normal((2, wide)).astype(np.float32)
    mean, rstd = draw.standard_normal(rows).astype(np.float32), 1 + draw.random(rows).astype(np.float32)
    inputs = [x, gamma, beta] if name == "layer_norm" else [dy, x, gamma, mean, rstd]
    found, memory, operands, simulator = call(name, inputs, known.attrs, counting=True)
    assert [source.make.__module__.rpartition(".")[2] for source in simulator.launches] == ["layernorm_groups"]
    check(known, found, inputs, dtype)
    for p in operands:
        if p.meta.shape == (rows, wide):
            at = p.address - memory.base
            assert (memory.reads[at:at + p.meta.nbytes] + memory.writes[at:at + p.meta.nbytes] == 1).all()
    turn_off(monkeypatch, "layernorm")
    found, *_, simulator = call(name, inputs, known.attrs, counting=True)
    assert [source.make.__module__.rpartition(".")[2] for source in simulator.launches] == ["layernorm"]
    check(known, found, inputs, dtype)


# Rows of one slab and of several, with a ragged end; columns of one tile, and of two.
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("rows", "groups"), [(3, 1), (67, 5)])
def test_sums_down_dense_rows_have_the_values_of_the_formulas(rows, groups, dtype, monkeypatch):
    known = next(c for c in CASES if c.name == "layer_norm_grad_reduce")
    draw = np.random.default_rng(1)
    dy, x = draw.standard_normal((2, rows, groups * WIDTHS[dtype])).astype(dtype)
    mean, rstd = draw.standard_normal(rows).astype(np.float32), 1 + draw.random(rows).astype(np.float32)
    found, *_, simulator = call("layer_norm_grad_reduce", [dy, x, mean, rstd], {}, counting=True)
    assert simulator.launches[0].make.__name__ == "parameter_column_sums"
    check(known, found, [dy, x, mean, rstd], dtype)
    turn_off(monkeypatch, "layernorm")
    found, *_, simulator = call("layer_norm_grad_reduce", [dy, x, mean, rstd], {}, counting=True)
    assert simulator.launches[0].make.__name__ == "parameter_sums"
    check(known, found, [dy, x, mean, rstd], dtype)


def test_rows_that_a_block_cannot_hold_and_rows_of_no_groups_go_the_general_way():
    for wide in (16 * 32 + 4, 30):
        x, vector = np.ones((2, wide), np.float32), np.ones(wide, np.float32)
        *_, simulator = call("layer_norm", [x, vector, vector], {"eps": 1e-3}, counting=True)
        assert simulator.launches[-1].make.__name__ == "normalise_rows"


def test_the_simulator_refuses_a_group_at_no_multiple_of_its_size():
    memory = Memory(1 << 12)
    simulator, place = Simulator(memory), memory.take(64)
    load, _ = simulator.tools.group("float32", 4)
    load(Span(memory, place + 16, "float32"), 1, np.empty(4, np.float32), 0)
    with pytest.raises(AssertionError, match="16 bytes at"):
        load(Span(memory, place + 8, "float32"), 1, np.empty(4, np.float32), 0)


# What more kernels move in groups, beside the general ones: (operation, shapes, attributes, kernel, layout).
BIASED, PLANE = (2, 16, 3, 3), (2, 16, 6, 5)
REPEATED = [
    ("add", [(9, 40), (40,)], {}, "repeated_groups", None),
    ("add", [BIASED, (16, 1, 1)], {}, "repeated_groups", "last"),
    ("mul", [BIASED, (2, 16, 1, 1)], {}, "repeated_groups", "last"),
    ("dropout", [(5, 24)], {"p": 0.5, "seed": 3, "start": 2**32 - 7}, "dropout_groups", None),
    ("adaptive_avg_pool2d_grad", [(2, 16, 1, 1)], {"x_shape": PLANE}, "repeated_groups", "last"),
    ("softmax", [(35, 24)], {}, "softmax_row_groups", None), ("softmax", [(9, 88)], {}, "softmax_row_groups", None),
    ("softmax_grad", [(9, 88)] * 2, {}, "softmax_gradient_row_groups", None),
    ("bias_grad", [(37, 24)], {"axis": 1}, "column_sums", None),
    ("bias_grad", [PLANE], {"axis": 1}, "column_sums", "last"),
    ("adaptive_avg_pool2d", [PLANE], {"size": (1, 1)}, "column_sums", "last"),
    ("sum_to", [(300, 8)], {"shape": (8,)}, "column_sums", None),
]
ROUNDED = {"adaptive_avg_pool2d_grad", "softmax", "softmax_grad", "bias_grad", "adaptive_avg_pool2d",
           "sum_to"}  # else to the bit


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("name", "shapes", "attrs", "made", "layout"), REPEATED)
def test_what_is_moved_in_groups_has_the_values_of_the_general_kernels(name, shapes, attrs, made, layout, dtype,
                                                                      monkeypatch):
    draw, lie = np.random.default_rng(1), channels_last if layout else None
    inputs = [draw.standard_normal(shape).astype(dtype) for shape in shapes]
    found, *_, simulator = call(name, inputs, attrs, layout=lie, counting=True)
    assert simulator.launches[0].make.__name__ == made
    turn_off(monkeypatch, *fast.FAMILIES)
    general, *_, simulator = call(name, inputs, attrs, layout=lie, counting=True)
    assert simulator.launches[0].make.__name__ != made
    for a, b in zip(found, general, strict=True):
        if name in ROUNDED:
            rounding = 2.0**-8 if a.dtype.name == "bfloat16" else 2e-6
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rounding, atol=rounding)
        else:
            assert a.tobytes() == b.tobytes()


# A mask for every row, one for all heads of a sequence, and one that repeats for all rows of it.
@pytest.mark.default(shape=[(2, 1, 1, 44)])
@pytest.mark.parametrize("shape", [(2, 3, 5, 44), (2, 1, 5, 44), (2, 1, 1, 44)])
def test_a_mask_is_found_for_each_row_however_it_repeats(shape):
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 44)).astype(np.float32)
    mask = np.where(np.random.default_rng(2).random(shape) < 0.3, -np.inf, 0).astype(np.float32)
    found, *_, simulator = call("softmax", [x, mask], {}, counting=True)
    assert simulator.launches[0].make.__name__ == "softmax_row_groups"
    e = np.exp((x + mask).astype(np.float64))
    np.testing.assert_allclose(found[0], e / e.sum(-1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize(("dtype", "last"), [("float32", 8), ("bfloat16", 16), ("bfloat16", 2), ("float64", 8)])
def test_a_permuted_copy_of_long_runs_is_moved_in_groups_of_words(dtype, last):
    memory, strides = Memory(1 << 16, counting=True), (3 * 5 * last, last, 3 * last, 1)  # [n, L, h, d] -> [n, h, L, d]
    values = np.random.default_rng(1).integers(0, 256, (2, 3, 5, last * np.dtype(dtype).itemsize), dtype=np.uint8)
    x, y = Placed(memory, (2, 3, 5, last), dtype, strides), Placed(memory, (2, 3, 5, last), dtype)
    x.array[...] = values.view(dtype)
    simulator = Simulator(memory)
    KERNELS["contiguous"].issue(simulator, [y.address, x.address], [y.meta, x.meta], {})
    grouped = last * np.dtype(dtype).itemsize % 16 == 0 and dtype != "float64"
    assert (simulator.launches[0].make.__name__ == "strided_groups") is grouped
    assert y.array.tobytes() == values.tobytes()
