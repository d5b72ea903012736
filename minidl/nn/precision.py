"""Mixed precision: a layer's master copies are float32, and it computes in the precision of its runtime.

What a layer multiplies (its input and its weight) is lowered; what it only adds (a bias), or normalises with
(parameters and statistics), stays float32, for it is small. A lowered weight is an activation like any other: kept for
the gradient, evicted, or made again from its master copy. Its gradient is cast back (``ops.cast``).
"""

from minidl.meta import DType, float32
from minidl.ops.shape import cast
from minidl.runtime import current_runtime
from minidl.tensor import Tensor


def computed_in(dtype: DType) -> DType:
    """What a layer with parameters of a dtype computes in: the runtime's activations for float32, else that itself."""
    return current_runtime().precision.activations if dtype is float32 else dtype


def lowered(tensor: Tensor) -> Tensor:
    """A float32 tensor in the dtype of the runtime's activations; itself if it is one already, or no float32."""
    activations = current_runtime().precision.activations
    return tensor if activations is float32 or tensor.dtype is not float32 else cast(tensor, activations)
