"""Each CUDA kernel as Numba compiles it, executed on the CPU beside its source in the simulator, bit for bit.

A kernel is a function that makes a device function. What stands in CALLS is closed by what the operations launch and by
what the files define: a new kernel without a call here fails by its name.
"""

import importlib.util
import inspect
import pkgutil

import ml_dtypes  # noqa: F401 - the name bfloat16
import pytest
from cuda_kernel_calls import call, channels_last, make_blocks_tiny, reversed_in_wider

from bench.support.cuda_calls import PRECISIONS, sources
from bench.support.kernel_cases import Case
from minidl.kernels import cuda
from minidl.kernels.cuda import fast

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("numba-cuda is not installed (pip install -e '.[cuda13]')", allow_module_level=True)

from cuda_twice import Twice


def heads(shape):
    """Strides of [n, heads, length, size] inside of [n, length, heads, size]."""
    n, many, length, size = shape
    return (many * length * size, size, many * size, 1)


MAPS, C = (2, 24, 3, 5), (24,)  # groups of 16 bytes, an odd number of them in halves
ODD, D = (3, 5, 6, 7), (5,)
ROW, ROWS = (24,), (35, 24)
LINE, EPS = {"eps": 1e-3, "training": True}, {"eps": 1e-3}
SMALL = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}
LARGE = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
APART = {"kernel": (2, 3), "stride": (4, 12), "padding": (0, 1)}  # windows that stand too far apart for tiles
TALL = {"kernel": (6, 2), "stride": (1, 1), "padding": (1, 0)}  # that reach above the first row of an image
PLANE, POOLED = (2, 24, 5, 11), (2, 24, 2, 10)
SGD = {"lr": 0.05, "weight_decay": 0.1}
STEP = ((3, 5), (67,))  # two parameters, ragged ends
POSITIVE = tuple(("+", s) for s in STEP)
LAST, WIDER = channels_last, reversed_in_wider

CALLS = {  # kernel: (operation, shapes of its inputs, attributes, layout of its inputs)
    "attention.softmax": ("softmax", ((2, 3, 7), (7,)), {}, None),
    "attention.softmax_grad": ("softmax_grad", ((2, 3, 7), (2, 3, 7)), {}, WIDER),
    "batchnorm_maps.input_gradient": ("batch_norm_relu_grad", (ODD, ODD, D, D, D, ("+", D), D, D), LINE, None),
    "batchnorm_maps.merge_statistics": ("batch_norm_merge", (D, ("+", D), D, ("+", D)), {"count": 3, "other": 2}, None),
    "batchnorm_maps.normalise": ("batch_norm_add_relu", (ODD, ODD, D, D, D, ("+", D)), LINE, WIDER),
    "batchnorm_maps.update_running": (
        "batch_norm_update_", (D, ("+", D)) * 2, {"momentum": 0.1, "count": 6}, None),
    "batchnorm_rows.channel_gradient_sums": ("batch_norm_relu_grad_reduce", (MAPS, MAPS, C, C, C, ("+", C)), EPS, LAST),
    "batchnorm_rows.channel_statistics": ("batch_norm_stats", (MAPS,), {}, LAST),
    "batchnorm_rows.channels_gradient": ("batch_norm_relu_grad", (MAPS, MAPS, C, C, C, ("+", C), C, C), LINE, LAST),
    "batchnorm_rows.normalise_channels": ("batch_norm_add_relu", (MAPS, MAPS, C, C, C, ("+", C)), LINE, LAST),
    "batchnorm_sums.gradient_sums": ("batch_norm_relu_grad_reduce", (ODD, ODD, D, D, D, ("+", D)), EPS, None),
    "batchnorm_sums.stats": ("batch_norm_stats", (ODD,), {}, None),
    "batchnorm_sums.united_gradients": ("batch_norm_grad_reduce", (ODD, ODD, D, ("+", D)), EPS, None),
    "batchnorm_sums.united_stats": ("batch_norm_stats", (ODD,), {}, None),
    "choose.compared": ("compare", (ODD, (7,)), {"relation": "<="}, WIDER),
    "choose.selected": ("where", (("b", ODD), ODD, (7,)), {}, None),
    "column_groups.column_sums": ("bias_grad", ((67, 24),), {"axis": 1}, None),
    "column_groups.parameter_column_sums": (
        "layer_norm_grad_reduce", ((67, 24), (67, 24), (67,), ("+", (67,))), {}, None),
    "element_groups.dense_groups": ("add", ((264,), (264,)), {}, None),
    "element_groups.dropout_groups": ("dropout", (ROWS,), {"p": 0.5, "seed": 3, "start": 2**32 - 7}, None),
    "element_groups.repeated_groups": ("add", (ROWS, ROW), {}, None),
    "element_groups.strided_groups": ("contiguous", ((2, 3, 5, 16),), {}, heads),
    "elementwise.dense": ("gelu_tanh", ((131,),), {}, None),
    "elementwise.dropout_elements": ("dropout", (ODD,), {"p": 0.5, "seed": 3, "start": 2**32 - 7}, WIDER),
    "elementwise.strided": ("add", (ODD, (6, 1)), {}, WIDER),
    "embedding.chunk_sums": ("embedding_grad", ((67, 5), ("i3", (67,))), {"rows": 4}, None),
    "embedding.exchanged": ("embedding_grad", ((67, 5), ("i3", (67,))), {"rows": 4}, None),
    "embedding.position_keys": ("embedding_grad", ((67, 5), ("i3", (67,))), {"rows": 4}, None),
    "embedding.sorted_tiles": ("embedding_grad", ((67, 5), ("i3", (67,))), {"rows": 4}, None),
    "embedding.taken_rows": ("embedding", ((4, 5), ("i4", (37,))), {}, WIDER),
    "embedding.united_chunks": ("embedding_grad", ((67, 5), ("i3", (67,))), {"rows": 4}, None),
    "layernorm.normalise_rows": ("layer_norm", ((3, 37), (37,), (37,)), EPS, None),
    "layernorm.parameter_sums": ("layer_norm_grad_reduce", ((37, 5), (37, 5), (37,), ("+", (37,))), {}, None),
    "layernorm.rows_gradient": ("layer_norm_grad", ((3, 37), (3, 37), (37,), (3,), ("+", (3,))), {}, None),
    "layernorm_groups.normalise_row_groups": ("layer_norm", (ROWS, ROW, ROW), EPS, None),
    "layernorm_groups.row_groups_gradient": ("layer_norm_grad", (ROWS, ROWS, ROW, (35,), ("+", (35,))), {}, None),
    "loss.gradient_factor": ("cross_entropy_grad", ((), (5, 7), ("g7", (5,))), {}, None),
    "loss.mean_loss": ("cross_entropy", ((37, 7), ("g7", (37,))), {}, None),
    "loss.rows_gradient": ("cross_entropy_grad", ((), (5, 7), ("g7", (5,))), {}, WIDER),
    "loss.share_of_labels": ("label_share", ((), ("g7", (5,)), ("g7", (37,))), {}, None),
    "pool.cells_gradient": ("adaptive_avg_pool2d_grad", ((3, 5, 2, 3),), {"x_shape": ODD}, None),
    "pool.gradient": ("max_pool2d_grad", ((3, 5, 3, 8), ("i6", (3, 5, 3, 8))), {"x_shape": ODD, **SMALL}, None),
    "pool.max_windows": ("max_pool2d", (ODD,), SMALL, WIDER),
    "pool.mean_cells": ("adaptive_avg_pool2d", (ODD,), {"size": (2, 3)}, None),
    "pool.mean_windows": ("avg_pool2d", (ODD,), SMALL, WIDER),
    "pool_groups.gradient_of_groups": (
        "max_pool2d_grad", (POOLED, ("i12", POOLED)), {"x_shape": PLANE, **TALL}, LAST),
    "pool_groups.windows_of_groups": ("max_pool2d", (PLANE,), APART, LAST),
    "pool_tiles.gradient_of_tiles": (
        "max_pool2d_grad", ((2, 24, 3, 6), ("i9", (2, 24, 3, 6))), {"x_shape": PLANE, **LARGE}, LAST),
    "pool_windows.windows_abreast": ("max_pool2d", (PLANE,), LARGE, LAST),
    "ranking.log_softmax": ("log_softmax", ((3, 37),), {}, None),
    "ranking.ranked": ("topk", ((5, 7),), {"k": 3, "largest": True}, WIDER),
    "shape.transposed": ("contiguous", ((9, 5),), {}, WIDER),  # tiles with one row, and with one column
    "softmax_groups.softmax_gradient_row_groups": ("softmax_grad", (ROWS, ROWS), {}, None),
    "softmax_groups.softmax_row_groups": ("softmax", ((2, 3, 5, 24), (2, 1, 1, 24)), {}, None),
    "steps.adadelta_step": ("adadelta_", (*STEP, *POSITIVE, *POSITIVE, *STEP), {**SGD, "rho": 0.9, "eps": 1e-3}, None),
    "steps.adam_step": ("adam_", (*STEP, *STEP, *POSITIVE, *STEP), {
        **SGD, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "step": 7, "decoupled": True}, None),
    "steps.momentum_step": ("sgd_momentum_", STEP * 3, {**SGD, "momentum": 0.9, "first": False}, None),
    "steps.sgd_step": ("sgd_", STEP * 2, SGD, None),
    "sums.partial_sums": ("sum_to", ((4, 70, 3),), {"shape": (70, 1)}, None),
    "sums.united_sums": ("sum_to", ((4, 70, 3),), {"shape": (1,)}, None),
    "update.random_numbers": ("normal_", (ODD,), {"seed": 1, "mean": 3.0, "std": 2.0}, WIDER),
}

MEANS = {  # kernels that serve max-pooling and mean pooling, whose code differs
    "pool.gradient": ("avg_pool2d_grad", ((3, 5, 3, 8),), {"x_shape": ODD, **SMALL}, None),
    "pool_groups.gradient_of_groups": ("avg_pool2d_grad", (POOLED,), {"x_shape": PLANE, **TALL}, LAST),
    "pool_groups.windows_of_groups": ("avg_pool2d", (PLANE,), APART, LAST),
    "pool_tiles.gradient_of_tiles": ("avg_pool2d_grad", ((2, 24, 3, 6),), {"x_shape": PLANE, **LARGE}, LAST),
    "pool_windows.windows_abreast": ("avg_pool2d", (PLANE,), LARGE, LAST),
}

# What is moved in groups, and computed with otherwise.
ONLY_MOVED = {("element_groups.dense_groups", dtype) for dtype in ("float16", "float64")}
MOVED = ("contiguous", ((264,),), {}, None)


def name_of(make):
    return f"{make.__module__.rpartition('.')[2]}.{make.__name__}"


# What operations launch, with blocks as they are: (kernel, a precision that it serves).
SERVED = sorted({(name_of(source.make), dtype) for dtype in (*PRECISIONS, "float64") for source in sources(dtype)})


def written():
    """The kernels that the files define: functions of tools and of options, the number of threads among them."""
    for package in (cuda, fast):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in ("compile", "words"):  # which import CUDA
                for function in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
                    named = inspect.getfullargspec(function) if inspect.isfunction(function) else None
                    if named and named.args == ["tools"] and "threads" in named.kwonlyargs:
                        yield name_of(function)


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    make_blocks_tiny(monkeypatch)


def test_every_kernel_that_is_defined_is_launched_and_has_a_call_here():
    assert set(written()) == {kernel for kernel, _ in SERVED} == set(CALLS)


@pytest.mark.default(kernel=["shape.transposed", "pool_groups.gradient_of_groups", "element_groups.dense_groups"])
@pytest.mark.parametrize(("kernel", "dtype"), [
    pytest.param(*cell, marks=() if cell[1] == "bfloat16" else pytest.mark.full) for cell in SERVED])
def test_the_compiled_kernel_leaves_the_bytes_of_its_source(kernel, dtype):
    compare(kernel, dtype, MOVED if (kernel, dtype) in ONLY_MOVED else CALLS[kernel])


@pytest.mark.default(kernel=["pool_groups.gradient_of_groups"])
@pytest.mark.parametrize("kernel", sorted(MEANS))
def test_the_compiled_kernel_of_means_leaves_the_bytes_of_its_source(kernel):
    compare(kernel, "bfloat16", MEANS[kernel])


def compare(kernel, dtype, case):
    operation, shapes, attrs, layout = case
    inputs = Case(operation, shapes, lambda: None, attrs).inputs(dtype)
    *_, twice = call(operation, inputs, attrs, layout=layout, counting=True, simulator=Twice)
    assert kernel in [name_of(source.make) for source in twice.launches]
