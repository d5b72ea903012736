"""A Tensor is the user's handle on a Storage: it counts as one use of its bytes, and dies with one ``release``.

It knows shapes and status, and how to call an operation; the operators (+, @, reshape, backward, ...) are attached
by ``minidl.ops`` and ``minidl.autograd`` when these are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minidl.executor import current
from minidl.meta import DType, Meta, Shape
from minidl.op import Attrs, Op

if TYPE_CHECKING:
    import numpy as np

    from minidl.memory.storage import Status, Storage


class Tensor:
    """A handle on a Storage. Making one takes over a use that the storage already counts (see ``alias``)."""

    __slots__ = ("storage", "given", "__weakref__")
    __array_priority__ = 100.0  # numpy leaves `array * tensor` to us

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.given = False

    def __del__(self) -> None:
        try:
            storage = self.storage
        except AttributeError:  # its construction failed
            return
        if storage is not None:  # else it was given away
            storage.release()

    if TYPE_CHECKING:  # attached by minidl.ops and minidl.autograd

        def __add__(self, other: Tensor | float) -> Tensor: ...
        def __radd__(self, other: float) -> Tensor: ...
        def __sub__(self, other: Tensor | float) -> Tensor: ...
        def __rsub__(self, other: float) -> Tensor: ...
        def __mul__(self, other: Tensor | float) -> Tensor: ...
        def __rmul__(self, other: float) -> Tensor: ...
        def __truediv__(self, other: Tensor | float) -> Tensor: ...
        def __matmul__(self, other: Tensor) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def sum(self, axes: int | Shape | None = None, *, keepdims: bool = False) -> Tensor: ...
        def mean(self, axes: int | Shape | None = None, *, keepdims: bool = False) -> Tensor: ...
        def exp(self) -> Tensor: ...
        def log(self) -> Tensor: ...
        def sqrt(self) -> Tensor: ...
        def relu(self) -> Tensor: ...
        def tanh(self) -> Tensor: ...
        def sigmoid(self) -> Tensor: ...
        def reshape(self, shape: Shape) -> Tensor: ...
        def permute(self, axes: Shape) -> Tensor: ...
        def narrow(self, axis: int, start: int, stop: int) -> Tensor: ...
        def flatten(self, start: int = 1) -> Tensor: ...
        def contiguous(self) -> Tensor: ...
        def cast(self, dtype: DType) -> Tensor: ...
        def detach(self) -> Tensor: ...
        def add_(self, other: Tensor) -> None: ...
        def copy_(self, other: Tensor) -> None: ...
        def fill_(self, value: float) -> None: ...
        def backward(self, gradient: Tensor | None = None) -> None: ...

    def release(self) -> None:
        """Give up this handle now; it must not be used again."""
        storage = self.storage
        self.storage = None  # type: ignore[assignment]
        storage.release()

    def alias(self) -> Tensor:
        """Another handle on the same storage."""
        self.storage.retain()
        return Tensor(self.storage)

    # What the handle shows of its storage (Listing 1 of the paper).
    @property
    def meta(self) -> Meta:
        return self.storage.meta

    @property
    def shape(self) -> Shape:
        return self.storage.meta.shape

    @property
    def ndim(self) -> int:
        return len(self.storage.meta.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.storage.meta.size

    @property
    def dtype(self) -> DType:
        return self.storage.meta.dtype

    @property
    def nbytes(self) -> int:
        return self.storage.meta.nbytes

    @property
    def tensor_id(self) -> int:
        return self.storage.base.tensor_id

    @property
    def access_count(self) -> int:
        return self.storage.base.access_count

    @property
    def timestamp(self) -> float:
        """Seconds on the stall-free device timeline of this iteration at the last access."""
        return self.storage.base.timestamp

    @property
    def status(self) -> Status:
        return self.storage.base.status

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tensor ids of what it was computed from, in the operation's order; () for a leaf."""
        return tuple([storage.base.tensor_id for storage in self.storage.inputs])

    @property
    def operation_name(self) -> str:
        """The operation that made it; empty for a leaf."""
        call = self.storage.call
        return call.op.name if call is not None else ""

    @property
    def requires_grad(self) -> bool:
        return self.storage.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if self.storage.call is not None and self.storage.call.op.vjp is not None:
            raise ValueError("requires_grad can be set on leaves only; use detach() first")
        self.storage.requires_grad = value

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` accumulated in this leaf."""
        return self.storage.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self.storage.grad = value

    def numpy(self) -> np.ndarray:
        """A copy of the value. Waits for the device. All NaN (or zero) on a device without numerics."""
        return current().read(self.storage)

    def __dlpack__(self, **options: Any) -> Any:
        """A copy of the value for another library, in the memory of the device. Waits for the device once.

        The options are the array API's: stream, max_version, dl_device, copy.
        """
        return current().share(self.storage).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return current().device.dlpack_device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where the value lies, without a copy: true until the next operation, which may move or evict it.

        Waits for the device once. AttributeError on devices that are no GPUs.
        """
        executor = current()
        if executor.device.dlpack_device[0] == 1:  # asked by hasattr: no reason to wait for anything
            raise AttributeError(f"the memory of {executor.device.name} is not CUDA's")
        return executor.interface(self.storage)

    def item(self) -> float:
        """The value of a tensor of one element. NaN on a device without numerics."""
        if self.storage.meta.size != 1:
            raise ValueError(f"item() needs one element, not {self.storage.meta.size}: shape {self.shape}")
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        made_by = f", {self.operation_name}" if self.operation_name else ""
        return f"Tensor({self.meta}, id {self.tensor_id}, {self.status.name}{made_by})"


def give(tensor: Tensor) -> Tensor:
    """Mark the next use of this handle as its last: the operation may write over its bytes, and frees them after.

    Gradient formulas hand over what they use for the last time; the handle is dead once the operation has run.
    """
    tensor.given = True
    return tensor


def apply_all(op: Op, *tensors: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Run an operation on tensors."""
    return tuple([Tensor(storage) for storage in _run(op, tensors, attrs)])


def apply(op: Op, *tensors: Tensor, **attrs: Any) -> Tensor:
    """Run an operation of one output on tensors."""
    return Tensor(_run(op, tensors, attrs)[0])


def _run(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> tuple[Storage, ...]:
    """The only way from a formula to the executor."""
    given = 0
    inputs: list[Storage] = []
    for tensor in tensors:
        if tensor.given:
            given |= 1 << len(inputs)
        inputs.append(tensor.storage)
    results = current().run(op, tuple(inputs), attrs, given)
    if given:
        for tensor in tensors:
            if tensor.given and tensor.storage is not None:
                tensor.release()
    return results
