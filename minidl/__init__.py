"""minidl: an eager deep-learning framework built around tensor-granular memory management."""

import os

# The CPU kernels multiply many small matrices, one image after the other. A pool of BLAS threads gains little on these
# and spins against everything else on a busy machine, which can cost a factor of ten. Set it before NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from minidl import autograd, ops, protocols  # noqa: E402, F401 - importing them attaches the Tensor's methods
from minidl.autograd import no_grad
from minidl.context import current
from minidl.errors import OutOfMemory, ShapeError, UserError
from minidl.runtime import Runtime, current_runtime, parameter
from minidl.tensor import Tensor

__version__ = "0.1.0"
__all__ = ["OutOfMemory", "Runtime", "ShapeError", "Tensor", "UserError", "current", "current_runtime", "no_grad",
           "parameter"]
