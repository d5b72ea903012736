"""minidl: an eager deep-learning framework built around tensor-granular memory management.

Beside the runtime the names of PyTorch that programs use: functions of tensors, new tensors, dtypes.
"""

import os
from importlib import import_module
from types import ModuleType

# The CPU kernels multiply many small matrices, one image after the other. A pool of BLAS threads gains little on these
# and spins against everything else on a busy machine, which can cost a factor of ten. Set it before NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from minidl import autograd, ops  # noqa: E402, F401 - importing them attaches the Tensor's methods
from minidl.autograd import no_grad
from minidl.context import current
from minidl.errors import NoSuchIndex, OutOfMemory, ShapeError, UserError
from minidl.meta import bfloat16, float16, float32, float64, int32, int64, uint8
from minidl.meta import boolean as bool  # noqa: A004 - PyTorch's name
from minidl.meta import float32 as float  # noqa: A004
from minidl.meta import float64 as double
from minidl.meta import int32 as int  # noqa: A004
from minidl.meta import int64 as long
from minidl.ops import (
    add,
    amax,
    amin,
    argmax,
    argmin,
    cat,
    chunk,
    clamp,
    div,
    exp,
    flatten,
    gather,
    interop,  # noqa: F401 - attaches a Tensor's protocols
    log,
    log_softmax,
    masked_fill,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    mul,
    neg,
    permute,
    relu,
    reshape,
    sigmoid,
    split,
    sqrt,
    squeeze,
    stack,
    std,
    sub,
    sum,
    tanh,
    topk,
    transpose,
    unsqueeze,
    var,
    where,
)

# ``tensor`` takes the place of the module of its name, which is loaded by now; others go on importing Tensor from it.
from minidl.ops.creation import (
    arange,
    eye,
    full,
    full_like,
    is_tensor,
    linspace,
    manual_seed,
    multinomial,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    tensor,
    tril,
    triu,
    zeros,
    zeros_like,
)
from minidl.ops.functions import softmax
from minidl.runtime import Runtime, current_runtime, parameter
from minidl.tensor import Tensor

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """``minidl.nn`` and ``minidl.optim`` without an import of their own: they stand above what this package loads."""
    if name in ("nn", "optim"):
        return import_module(f"minidl.{name}")
    raise AttributeError(f"module minidl has no {name!r}")


__all__ = [
    "NoSuchIndex", "OutOfMemory", "Runtime", "ShapeError", "Tensor", "UserError", "add", "amax", "amin", "arange",
    "argmax", "argmin", "bfloat16", "bool", "cat", "chunk", "clamp", "current", "current_runtime", "div", "double",
    "exp", "eye", "flatten", "float", "float16", "float32", "float64", "full", "full_like", "gather", "int",
    "int32", "int64", "is_tensor", "linspace", "log", "log_softmax", "long", "manual_seed", "masked_fill", "matmul",
    "max", "maximum", "mean", "min", "minimum", "mul", "multinomial", "neg", "no_grad", "ones", "ones_like",
    "parameter", "permute", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "relu", "reshape",
    "sigmoid", "softmax", "split", "sqrt", "squeeze", "stack", "std", "sub", "sum", "tanh", "tensor", "topk",
    "transpose", "tril", "triu", "uint8", "unsqueeze", "var", "where", "zeros", "zeros_like",
]
