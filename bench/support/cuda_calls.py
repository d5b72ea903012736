"""Calls that between them need every source of the CUDA kernels, for compiling them all offline."""

from typing import Any

from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.launch import DeviceFunction
from minidl.meta import DTYPES, DType, Meta, boolean, int64, meta, uint8, wide
from minidl.ops.choose import RELATIONS

MAP, SMALL = (8, 64, 14, 14), (64,)
ROWS = ((64, 768), (64, 770), (16, 50_000))  # in groups of 16 bytes; held in registers one by one; read again
PRECISIONS = ("float32", "bfloat16", "float16")


def capability_of(architecture: str) -> tuple[int, int]:
    """Convert an architecture to a compute capability: ``sm_90`` to (9, 0)."""
    digits = architecture.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def channels_last(m: Meta) -> Meta:
    """Return the description of the same image stored channels-last."""
    n, c, h, w = m.shape
    return meta(m.shape, m.dtype, (c * h * w, 1, w * c, c))


def _choices(dtype: DType) -> dict[str, list[tuple[list[Meta], dict[str, Any]]]]:
    """Return calls of comparisons, masks, ranks and indexing: (operands, attributes) by the operation's name."""
    x, mask, odd = meta((64, 64), dtype), meta((64, 64), boolean), meta((64, 64), dtype, (1, 64))
    place, number, row = meta((64, 3), int64), {"value": 1.0}, meta((64, 3), dtype)
    parts: dict[str, Any] = {"shape": (64, 64), "parts": ((), (0, 64, 2))}
    return {
        "compare": [([mask, x, odd], {"relation": relation}) for relation in RELATIONS],
        "compare_number": [([mask, x], {"relation": relation, **number}) for relation in RELATIONS],
        "where": [([x, mask, x, odd], {})],
        "masked_fill": [([x, x, mask], {"inverted": inverted, **number}) for inverted in (False, True)],
        "convert": [([meta(m.shape, int64), m], {"dtype": int64}) for m in (x, odd)]
        + [([m, meta(m.shape, int64, m.strides)], {"dtype": dtype}) for m in (x, odd)],
        "topk": [([row, place, x], {"k": 3, "largest": largest}) for largest in (False, True)],
        "log_softmax": [([x, x], {})],
        "index_grad": [([x, meta((64, 32), dtype)], parts), ([x, meta((64, 32), dtype), x], parts)],
    }


def calls(dtype: DType) -> dict[str, list[tuple[list[Meta], dict[str, Any]]]]:
    """Return calls of every operation, (operands, attributes)
    by its name, that together need every kernel source of it."""
    def of(*shapes: tuple[int, ...]) -> list[Meta]:
        return [meta(shape, dtype) for shape in shapes]

    flat, odd, strided = meta((4096,), dtype), meta((4097,), dtype), meta((64, 64), dtype, (1, 64))
    plane, last = meta(MAP, dtype), channels_last(meta(MAP, dtype))
    beside = wide(dtype)
    c = meta(SMALL, beside)
    one: list[tuple[list[Meta], dict[str, Any]]] = [([flat, flat], {}), ([odd, odd], {}),
                                                      ([meta((64, 64), dtype), strided], {})]
    two: list[tuple[list[Meta], dict[str, Any]]] = [
        ([flat] * 3, {}), ([odd] * 3, {}), ([meta((64, 64), dtype), strided, meta((64,), dtype)], {})]
    apart = meta(last.shape, dtype, last.strides, 1)  # which begins within a group of 16 bytes
    maps = (plane, last, apart)
    pooled = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
    far, alone = {"kernel": (2, 14), "stride": (8, 8), "padding": (0, 0)}, channels_last(meta((8, 64, 2, 1), dtype))
    small = (8, 64, 7, 7)
    small_last = channels_last(meta(small, dtype))
    small_maps = (meta(small, dtype), small_last, meta(small, dtype, small_last.strides, 1))
    indices = (meta(small, uint8), *[channels_last(meta(small, uint8))] * 2)
    point, heads = meta((*MAP[:2], 1, 1), dtype), meta((16, 12, 128, 64), dtype)
    apart_heads = meta(heads.shape, dtype, (98304, 64, 768, 1))
    line, eps = {"eps": 1e-5, "training": True}, {"eps": 1e-5}
    ids, labels = meta((16, 128), int64), meta((64,), int64)
    unary = dict.fromkeys(("neg", "exp", "log", "sqrt", "relu", "tanh", "sigmoid", "silu", "softplus",
                           "gelu", "gelu_tanh", "abs", "sign", "sin", "cos", "erf", "floor", "log1p", "expm1"), one)
    binary = dict.fromkeys(("add", "sub", "mul", "div", "sqrt_grad", "relu_grad", "tanh_grad", "sigmoid_grad",
                            "silu_grad", "gelu_grad", "gelu_tanh_grad", "maximum", "minimum", "pow"), two)
    rows = [(meta(shape, dtype), meta(shape[:1], beside), meta(shape[1:], beside)) for shape in ROWS]
    biased: list[tuple[list[Meta], dict[str, Any]]] = [([x, x, meta((64, 1, 1), beside)], {}) for x in maps]
    casts = [([meta(m.shape, to, m.strides), m], {"dtype": to}) for m in (flat, odd, plane, last, strided)
             for to in dict.fromkeys((beside, dtype))]
    return {
        **unary, **binary, "add": two + biased, "add_relu": two + biased, "cast": casts, "cast_grad": casts,
        "scale": [(m, {"value": 2.0}) for m, _ in one], "shift": [(m, {"value": 2.0}) for m, _ in one],
        "power": [(m, {"value": 2.5}) for m, _ in one],
        **_choices(dtype),
        "dropout": [(m, {"p": 0.1, "seed": 1}) for m, _ in one],
        "sum_to": [(of((64,), (4096, 64)), {"shape": (64,)}),
                   (of((64, 1), (64, 100_000)), {"shape": (64, 1)}),
                   (of((100_000,), (2, 100_000)), {"shape": (100_000,)})],
        "bias_grad": [(m, {"axis": 1}) for m in ([meta((768,), beside), meta((4096, 768), dtype)], [c, plane],
                                                 [c, last], [meta((770,), beside), meta((4096, 770), dtype)])],
        "softmax": [(list(m), {}) for row, *_ in rows for m in ((row, row), (row, row, row))],
        "softmax_grad": [([row] * 3, {}) for row, *_ in rows],
        "batch_norm_stats": [([c, c, x], {}) for x in maps], "batch_norm": [([x, x, c, c, c, c], line) for x in maps],
        "batch_norm_relu": [([x, x, c, c, c, c], line) for x in maps],
        "batch_norm_add_relu": [([x, x, x, c, c, c, c], line) for x in maps],
        "batch_norm_grad_reduce": [([c, c, x, x, c, c], eps) for x in maps],
        "batch_norm_relu_grad_reduce": [([c, c, x, x, c, c, c, c], eps) for x in maps],
        "batch_norm_grad": [([x, x, x, c, c, c, c, c], line) for x in maps],
        "batch_norm_relu_grad": [([x, x, x, c, c, c, c, c, c], line) for x in maps],
        "batch_norm_update_": [([c] * 4, {"momentum": 0.1, "count": 100})],
        "batch_norm_merge": [([c] * 6, {"count": 3, "other": 2})],
        "layer_norm": [([x, r, r, x, d, d], eps) for x, r, d in rows],
        "layer_norm_grad": [([x, x, x, d, r, r], {}) for x, r, d in rows],
        "layer_norm_grad_reduce": [([d, d, x, x, r, r], {}) for x, r, d in rows],
        "embedding": [([meta((16, 128, 768), dtype), meta((30_000, 768), table), ids], {})
                      for table in (dtype, beside)],
        "embedding_grad": [([meta((30_000, 768), table), meta((16, 128, 768), dtype), ids], {"rows": 30_000})
                           for table in (dtype, beside)],
        "gather_rows": [(of((320, 768), (16, 128, 768)) + [meta((16, 20), int64)], {})],
        **{name: [(of((16, 128, 768), (320, 768)) + [meta((16, 20), int64)], {"x_shape": (16, 128, 768)})]
           for name in ("gather_rows_grad", "add_rows")},
        "max_pool2d": [([y, i, x], pooled) for y, i, x in zip(small_maps, indices, maps, strict=True)]
        + [([alone, channels_last(meta(alone.shape, uint8)), last], far)],
        "max_pool2d_grad": [([x, y, i], {"x_shape": MAP, **pooled})
                            for y, i, x in zip(small_maps, indices, maps, strict=True)]
        + [([last, alone, channels_last(meta(alone.shape, uint8))], {"x_shape": MAP, **far})],
        "avg_pool2d": [*[([y, x], pooled) for y, x in zip(small_maps, maps, strict=True)], ([alone, last], far)],
        "avg_pool2d_grad": [([x, y], {"x_shape": MAP, **pooled}) for y, x in zip(small_maps, maps, strict=True)]
        + [([last, alone], {"x_shape": MAP, **far})],
        "adaptive_avg_pool2d": [*[([y, x], {"size": (7, 7)}) for y, x in zip(small_maps, maps, strict=True)],
                                *[([point, x], {"size": (1, 1)}) for x in maps]],
        "adaptive_avg_pool2d_grad": [*[([x, y], {"x_shape": MAP}) for y, x in zip(small_maps, maps, strict=True)],
                                     *[([x, point], {"x_shape": MAP}) for x in maps]],
        "cross_entropy": [([meta((), beside), x, x, labels if x.shape[0] == 64 else meta((16,), int64)], {})
                          for x, *_ in rows],
        "cross_entropy_grad": [([x, meta((), beside), x, labels if x.shape[0] == 64 else meta((16,), int64)], {})
                               for x, *_ in rows],
        "label_share": [([meta((), beside)] * 2 + [meta((16,), int64), labels], {})],
        "contiguous": [([plane, last], {}), ([last, plane], {}), ([heads, apart_heads], {}), *one],
        "concat": [(of((8, 6), (8, 3), (8, 3)), {"axis": 1})],
        "narrow_grad": [(of((8, 6), (8, 3)), {"shape": (8, 6), "axis": 1, "start": 1})],
        "sgd_": [([c] * 2, {"lr": 0.1})],
        "sgd_momentum_": [([c] * 3, {"lr": 0.1, "momentum": 0.9, "first": first}) for first in (False, True)],
        "adam_": [([c] * 4, {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "step": 1})],
        "adadelta_": [([c] * 4, {"lr": 0.1, "rho": 0.9, "eps": 1e-6})],
        "add_": [([flat] * 2, {})], "copy_": [([flat] * 2, {})],
        "fill_": [([flat], {"value": 1.0})], "full": [([flat], {"shape": (4096,), "dtype": dtype, "value": 1.0})],
        "normal_": [([flat], {"seed": 1, "mean": 0.0, "std": 1.0})],
        "uniform_": [([flat], {"seed": 1, "low": 0.0, "high": 1.0})],
        "upload": [([flat], {"shape": (4096,), "dtype": dtype, "data": None})], "upload_": [([strided], {"data": 0})],
    }


def sources(dtype: str) -> list[DeviceFunction]:
    """Return every kernel source that ``calls`` needs in a dtype."""
    found: dict[DeviceFunction, None] = {}
    for name, several in calls(DTYPES[dtype]).items():
        for metas, attrs in several:
            found.update(dict.fromkeys(KERNELS[name].prepare(metas, attrs).sources))
    return list(found)
