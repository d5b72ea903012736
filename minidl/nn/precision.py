"""Mixed precision: a layer's parameters are float32 master copies, and it computes in its runtime's precision.

A layer casts its input and its weight to that precision (*lowers* them). Biases, and the parameters and statistics of
normalisation, are small and stay float32. A lowered weight is an activation: it is kept for the gradient, evicted, or
replayed from its master copy. Its gradient is cast back (``ops.cast``).
"""

from minidl.meta import DType, float32
from minidl.ops.shape import cast
from minidl.runtime import current_runtime
from minidl.tensor import Tensor


def computed_in(dtype: DType) -> DType:
    """Return the dtype in which a layer computes: the runtime's precision for float32 parameters, else their dtype."""
    return current_runtime().precision.activations if dtype is float32 else dtype


def lowered(tensor: Tensor) -> Tensor:
    """Return a float32 tensor cast to the runtime's precision, such as bfloat16; other tensors unchanged."""
    activations = current_runtime().precision.activations
    return tensor if activations is float32 or tensor.dtype is not float32 else cast(tensor, activations)
