"""minidl: an eager deep-learning framework built around tensor-granular memory management."""

from minidl import autograd, ops  # noqa: F401 - importing them attaches the Tensor's operators
from minidl.autograd import no_grad
from minidl.errors import OutOfMemory, ShapeError, UserError
from minidl.executor import current
from minidl.runtime import Runtime, current_runtime, parameter
from minidl.tensor import Tensor

__version__ = "0.1.0"
__all__ = ["OutOfMemory", "Runtime", "ShapeError", "Tensor", "UserError", "current", "current_runtime", "no_grad",
           "parameter"]
