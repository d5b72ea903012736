"""Attaches to Tensor, under PyTorch's names, the functions that are composed of other operations."""

from minidl.ops import names_math, products, rearranging, scans
from minidl.ops.inplace import written
from minidl.tensor import Tensor

FUNCTIONS = {**names_math.FUNCTIONS, **products.FUNCTIONS, **rearranging.FUNCTIONS, **scans.FUNCTIONS}
"""Functions that are also methods of tensors."""

IN_PLACE = ("ceil", "trunc", "round", "rsqrt", "square", "reciprocal", "nan_to_num", "lerp", "addcmul", "addcdiv",
            "logit", "clip", "frac", "floor", "sin", "cos", "erf", "index_add", "log1p", "scatter_add", "expm1", "sign")
"""Functions that also have an in-place method."""


def _in_place(name: str) -> object:
    function = FUNCTIONS.get(name) or getattr(Tensor, name)

    def method(x: Tensor, *operands: object, **options: object) -> Tensor:
        return written(x, lambda y: function(y, *operands, **options), *operands)
    method.__name__ = f"{name}_"
    method.__doc__ = f"{name}(x, ...), in place; returns x. Raises UserError, ShapeError: see ``written``."
    return method


for _name, _function in FUNCTIONS.items():
    setattr(Tensor, _name, _function)
for _name in IN_PLACE:
    setattr(Tensor, f"{_name}_", _in_place(_name))
setattr(Tensor, "__matmul__", products.matmul)  # noqa: B010 - as all operators, it is attached
setattr(Tensor, "__rmatmul__", lambda b, a: products.matmul(a, b))  # noqa: B010
setattr(Tensor, "mT", property(products.transposed))  # noqa: B010
setattr(Tensor, "is_leaf", property(lambda x: not x.requires_grad or not x.operation_name))  # noqa: B010
setattr(Tensor, "nelement", Tensor.numel)  # noqa: B010
setattr(Tensor, "is_cuda", property(lambda x: x.device.startswith("cuda")))  # noqa: B010
setattr(Tensor, "is_floating_point", lambda x: x.dtype.floating)  # noqa: B010
setattr(Tensor, "element_size", lambda x: x.dtype.itemsize)  # noqa: B010
setattr(Tensor, "swapaxes", Tensor.transpose)  # noqa: B010
setattr(Tensor, "reshape_as", Tensor.view_as)  # noqa: B010
setattr(Tensor, "ravel", lambda x: x.reshape(-1))  # noqa: B010
setattr(Tensor, "type", Tensor.to)  # noqa: B010
setattr(Tensor, "dot", products.dot)  # noqa: B010
