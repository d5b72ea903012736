"""minidl: an eager deep-learning framework built around tensor-granular memory management.

Beside the runtime the names of PyTorch that programs use: functions of tensors, new tensors, dtypes.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
from math import e as _e
from math import inf as _inf
from math import nan as _nan
from math import pi as _pi
from typing import Any

# The CPU kernels multiply many small matrices, one image after the other. A pool of BLAS threads gains little on these
# and spins against everything else on a busy machine, which can cost a factor of ten. Set it before NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The pool that runs the kernels' loops waits for work asleep: threads that spin on a busy machine take its cores from
# each other, which can cost a factor of twenty. Where PyTorch has loaded OpenMP already it is too late to say so, and
# Numba's own pool is taken, whose threads sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "torch" in sys.modules:
    os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")

from minidl import autograd, ops  # noqa: E402, F401 - importing them attaches the Tensor's methods
from minidl.autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from minidl.context import current
from minidl.errors import NoSuchIndex, OutOfMemory, ShapeError, UserError, WrongKind
from minidl.meta import bfloat16, float16, float32, float64, int32, int64, uint8
from minidl.meta import boolean as bool  # noqa: A004 - PyTorch's name
from minidl.meta import float32 as float  # noqa: A004
from minidl.meta import float64 as double
from minidl.meta import int32 as int  # noqa: A004
from minidl.meta import int64 as long
from minidl.ops import absolute as abs  # noqa: A004 - PyTorch's names from here on

# ``tensor`` takes the place of the module of its name, which is loaded by now; others go on importing Tensor from it.
from minidl.ops import (
    amax, amin, argmax, argmin, cat, chunk, clamp, cos, erf, expm1, flatten, floor, gather, log1p, log_softmax,
    masked_fill, maximum, mean, minimum, narrow, neg, permute, relu, reshape, sign, sin, split, squeeze, stack, std,
    sum, topk, transpose, unsqueeze, var,
)
from minidl.ops import interop  # noqa: F401 - attaches a Tensor's protocols
from minidl.ops import cat as concat
from minidl.ops import clamp as clip
from minidl.ops import max as max  # noqa: A004
from minidl.ops import min as min  # noqa: A004
from minidl.ops.arithmetic import add, div, eq, floor_divide, ge, gt, le, lt, mul, ne, remainder, sub
from minidl.ops.arithmetic import power as pow  # noqa: A004
from minidl.ops.choose import logical_not
from minidl.ops.creation import (
    arange, eye, full, full_like, is_tensor, linspace, manual_seed, multinomial, ones, ones_like, rand, rand_like,
    randint, randn, randn_like, randperm, tensor, tril, triu, zeros, zeros_like,
)
from minidl.ops.functions import reciprocal, softmax
from minidl.ops.library import absolute, exp, log, sigmoid, sqrt, tanh
from minidl.ops.more_creation import (
    DoubleTensor, FloatTensor, IntTensor, LongTensor, as_tensor, bernoulli, empty, empty_like, from_numpy,
    is_floating_point, normal,
)
from minidl.ops.names_math import (
    addcdiv, addcmul, ceil, cosh, deg2rad, erfc, exp2, frac, hypot, isfinite, isinf, isnan, lerp, log2, log10,
    logaddexp, logit, nan_to_num, rad2deg, rsqrt, sinc, sinh, square, tan, trunc,
)
from minidl.ops.names_math import logical_and_of as logical_and
from minidl.ops.names_math import logical_or_of as logical_or
from minidl.ops.names_math import logical_xor_of as logical_xor
from minidl.ops.names_math import round as round  # noqa: A004
from minidl.ops.names_math import where_of as where
from minidl.ops.products import (
    addmm, baddbmm, bmm, cdist, cosine_similarity, diagonal, dot, einsum, matmul, mm, mv, norm, outer, trace,
)
from minidl.ops.rearranging import (
    broadcast_tensors, broadcast_to, flip, hstack, index_select, masked_select, meshgrid, movedim, nonzero,
    repeat_interleave, roll, select, take_along_dim, tile, unbind, unflatten, vstack,
)
from minidl.ops.scans import all_of as all  # noqa: A004
from minidl.ops.scans import (
    allclose, argsort, count_nonzero, cumprod, cumsum, equal, index_add, logsumexp, prod, scatter, scatter_add, sort,
)
from minidl.ops.scans import any_of as any  # noqa: A004
from minidl.ops.shape import detach
from minidl.runtime import Runtime, current_runtime, parameter
from minidl.tensor import Tensor

with suppress(ImportError):  # of einops, an extra
    from minidl import einops  # noqa: F401 - einops finds the backend that it defines

__version__ = "0.2.0"

inf, nan, pi, e = _inf, _nan, _pi, _e


def __getattr__(name: str) -> Any:
    """Import ``minidl.nn``, ``optim``, ``cuda``, ``save``, ``load`` or ``watch`` when the program first names it.
    These modules import this package, so it cannot import them while it is loaded itself."""
    if name in ("nn", "optim", "cuda"):
        return import_module(f"minidl.{name}")
    if name in ("save", "load"):
        return getattr(import_module("minidl.checkpoint.objects"), name)
    if name == "watch":
        return import_module("minidl.view.watch").watch
    raise AttributeError(f"module minidl has no {name!r}")


__all__ = [
    "DoubleTensor", "FloatTensor", "IntTensor", "LongTensor", "NoSuchIndex", "OutOfMemory", "Runtime", "ShapeError",
    "Tensor", "UserError", "WrongKind", "abs", "absolute", "add", "addcdiv", "addcmul", "addmm", "all", "allclose",
    "amax", "amin", "any", "arange", "argmax", "argmin", "argsort", "as_tensor", "baddbmm", "bernoulli", "bfloat16",
    "bmm", "bool", "broadcast_tensors", "broadcast_to", "cat", "cdist", "ceil", "chunk", "clamp", "clip", "concat",
    "cos", "cosh", "cosine_similarity", "count_nonzero", "cumprod", "cumsum", "current", "current_runtime",
    "deg2rad", "detach", "diagonal", "div", "dot", "double", "e", "einsum", "empty", "empty_like",
    "enable_grad", "eq", "equal", "erf", "erfc", "exp", "exp2", "expm1", "eye", "flatten", "flip", "float",
    "float16", "float32", "float64", "floor", "floor_divide", "frac", "from_numpy", "full", "full_like", "gather",
    "ge", "gt", "hstack", "hypot", "index_add", "index_select", "inf", "inference_mode", "int", "int32", "int64",
    "is_floating_point", "is_grad_enabled", "is_tensor", "isfinite", "isinf", "isnan", "le", "lerp", "linspace",
    "log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "logsumexp", "long", "lt", "manual_seed", "masked_fill", "masked_select", "matmul",
    "max", "maximum", "mean", "meshgrid", "min", "minimum", "mm", "movedim", "mul", "multinomial", "mv", "nan",
    "nan_to_num", "narrow", "ne", "neg", "no_grad", "nonzero", "norm", "normal", "ones", "ones_like", "outer",
    "parameter", "permute", "pi", "pow", "prod", "rad2deg", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "reciprocal", "relu", "remainder", "repeat_interleave", "reshape", "roll", "round", "rsqrt",
    "scatter", "scatter_add", "select", "set_grad_enabled", "sigmoid", "sign", "sin", "sinc", "sinh", "softmax",
    "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "sub", "sum", "take_along_dim", "tan", "tanh",
    "tensor", "tile", "topk", "trace", "transpose", "tril", "triu", "trunc", "uint8", "unbind", "unflatten",
    "unsqueeze", "var", "vstack", "where", "zeros", "zeros_like",
]
