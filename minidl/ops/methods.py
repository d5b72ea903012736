"""Methods of tensors under PyTorch's names: functions that have other names here, or are composed of others."""

from typing import Any

from minidl import meta as metas
from minidl.context import current
from minidl.dispatch import apply
from minidl.errors import ShapeError, UserError, WrongKind
from minidl.meta import DType, Shape
from minidl.ops import names_math, products, rearranging, scans
from minidl.ops.arguments import TYPES
from minidl.ops.choose import convert
from minidl.ops.elementwise import expand, neg
from minidl.ops.inplace import written
from minidl.ops.linear import matmul
from minidl.ops.parts import transpose
from minidl.ops.shape import CONTIGUOUS, between, concat, detach, reshape, sizes_of
from minidl.ops.update import copy_
from minidl.tensor import Tensor


def size(x: Tensor, dim: int | None = None) -> Any:
    """Return the shape, or the size of one dimension."""
    return x.shape if dim is None else x.shape[dim]


_NAMES = {metas.float32: "Float", metas.float64: "Double", metas.float16: "Half", metas.bfloat16: "BFloat16",
          metas.int64: "Long", metas.int32: "Int", metas.uint8: "Byte", metas.boolean: "Bool"}  # in names of types
_NAMED = {f"torch.{place}{name}Tensor": dtype for dtype, name in _NAMES.items() for place in ("", "cuda.")}
_IDLE = ("device", "non_blocking", "memory_format")  # arguments of ``to`` that have no effect here


def dtype_of(target: object) -> DType | None:
    """Return the dtype for a DType, a tensor or a Python type (float, int, bool); None for other objects."""
    if isinstance(target, Tensor):
        return target.dtype
    return target if isinstance(target, DType) else TYPES.get(target) if isinstance(target, type) else None


def asked_dtype(what: str, targets: tuple[object, ...], options: dict[str, Any]) -> DType | None:
    """Return the dtype in ``to``'s arguments, (dtype), (device), (device, dtype) or (tensor); None if there is none.
    Any text or integer counts as a device. Raises UserError for any other argument."""
    unknown = sorted(options.keys() - {*_IDLE, "dtype", "copy", "other"})
    if unknown:
        raise UserError(f"{what} takes a device, a dtype or a tensor, not {', '.join(unknown)}=")
    found = None
    for target in (*targets[:2], options.get("dtype"), options.get("other")):
        dtype = dtype_of(target)
        if dtype is None and not isinstance(target, str | int | None) and not hasattr(target, "type"):
            raise UserError(f"{what} takes a device, a dtype or a tensor, not a {type(target).__name__}")
        found = dtype or found
    return found


def to(x: Tensor, *targets: Any, **options: Any) -> Tensor:
    """Return x converted to a dtype; x itself if it has that dtype already and ``copy`` is not True.
    A tensor stands for its dtype. A device, ``non_blocking`` and ``memory_format`` have no effect: tensors live on
    their runtime's device. Raises UserError for other arguments."""
    dtype = asked_dtype("to()", targets, options)
    y = x if dtype is None else convert(x, dtype)
    return clone(x) if y is x and options.get("copy") else y


def type_(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Return PyTorch's name of x's type, such as "torch.FloatTensor"; with ``dtype``, x converted to it.
    dtype: such a name, a dtype, or a class such as ``FloatTensor``. Raises ShapeError for an unknown one;
    ``non_blocking`` has no effect."""
    if dtype is None:
        return f"torch.{'cuda.' if x.device.startswith('cuda') else ''}{_NAMES[x.dtype]}Tensor"
    found = _NAMED.get(dtype) if isinstance(dtype, str) else dtype_of(getattr(dtype, "dtype", dtype))
    if found is None:
        raise ShapeError(f"type() takes a dtype or a name such as 'torch.FloatTensor', not {dtype!r}")
    return convert(x, found)


def expanded(x: Tensor, *sizes: int | Shape) -> Tensor:
    """Return a view of x broadcast to a shape; -1 keeps a dimension's size. Raises ShapeError if it does not fit."""
    shape = sizes_of(sizes)
    lead = len(shape) - x.ndim
    if lead < 0 or -1 in shape[:lead]:
        raise ShapeError(f"cannot expand {list(x.shape)} to {list(shape)}")
    return expand(x, tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(shape)))


def repeat(x: Tensor, *counts: int | Shape) -> Tensor:
    """Return a copy of x repeated along each dimension; more counts add leading dimensions.
    Raises ShapeError for fewer counts, WrongKind for fractions."""
    times = sizes_of(counts)
    if not all(hasattr(n, "__index__") for n in times):
        raise WrongKind(f"repeat takes integers, not {list(times)}")
    if len(times) < x.ndim or min(times, default=1) < 0:
        raise ShapeError(f"repeat: counts {list(times)} do not fit {list(x.shape)}")
    y = reshape(x, (1,) * (len(times) - x.ndim) + x.shape)
    for axis, count in enumerate(times):
        y = concat([y] * count, axis) if count > 1 else y if count else between(y, axis, 0, 0)
    return y if y is not x else clone(x)


def clone(x: Tensor) -> Tensor:
    """Return a copy of x, through which gradients flow."""
    return apply(CONTIGUOUS, x)


def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """Set ``x.requires_grad`` to the given value; returns x."""
    x.requires_grad = requires_grad
    return x


def transposed(x: Tensor) -> Tensor:
    """Return a view of a matrix with its dimensions swapped, or a vector itself. Other tensors raise ShapeError."""
    if x.ndim > 2:
        raise ShapeError(f"t() is for matrices, not {list(x.shape)}; transpose(a, b) swaps two dimensions")
    return transpose(x, 0, 1) if x.ndim == 2 else x


def set_data(x: Tensor, value: Tensor) -> None:
    """Copy ``value`` into x, without a gradient (``x.data = value``). Raises ShapeError for another shape or dtype."""
    if value.storage.base is x.storage.base and value.meta is x.meta:
        return  # ``x.data += y`` has already written to the same bytes
    executor = current()
    before, executor.grad_enabled = executor.grad_enabled, False
    try:
        copy_(x, value)
    finally:
        executor.grad_enabled = before


def _converts(dtype: DType) -> Any:
    def method(x: Tensor, memory_format: object = None) -> Tensor:
        return convert(x, dtype)
    return method


def _item(x: Tensor) -> Any:
    return x.numpy().tolist()


def _refuse_cuda(x: Tensor, *_: Any) -> Tensor:
    if current().device.dlpack_device[0] == 1:
        raise UserError(f"tensors live on their runtime's device, {current().device.name}: Runtime(device='cuda')")
    return x


_METHODS: dict[str, Any] = {
    "size": size, "dim": lambda x: x.ndim, "tolist": _item, "to": to, "cuda": _refuse_cuda, "cpu": lambda x: x,
    "type_as": to, "expand": expanded, "expand_as": lambda x, other: expand(x, other.shape), "repeat": repeat,
    "clone": clone, "requires_grad_": requires_grad_, "t": transposed, "view": reshape,
    "view_as": lambda x, other: reshape(x, other.shape), "neg": neg, "matmul": matmul,
    "T": property(transposed), "data": property(detach, set_data),
    "device": property(lambda x: current().device.name),
    **{name: _converts(dtype) for name, dtype in (
        ("float", metas.float32), ("double", metas.float64), ("half", metas.float16), ("bfloat16", metas.bfloat16),
        ("long", metas.int64), ("int", metas.int32), ("bool", metas.boolean))},
}
for _name, _function in _METHODS.items():
    setattr(Tensor, _name, _function)


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
setattr(Tensor, "type", type_)  # noqa: B010
setattr(Tensor, "dot", products.dot)  # noqa: B010
