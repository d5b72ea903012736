"""Defines Tensor, the user's handle on a Storage. Each handle counts as one use of the storage's bytes.

The operators and methods (+, @, reshape, backward, ...) are attached by ``minidl.ops``, ``minidl.autograd`` and others
when these are imported; ``minidl.surface`` declares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from minidl.context import current
from minidl.errors import ShapeError, UserError, WrongKind
from minidl.meta import DType, Meta, Shape
from minidl.surface import Surface

if TYPE_CHECKING:
    from minidl.memory.storage import Status, Storage


class TensorInfo:
    """The six fields that Capuchin gives a tensor (Listing 1), as its storage has them; a view shows its base's."""

    __slots__ = ()
    storage: Storage

    @property
    def tensor_id(self) -> int:
        """The id of the storage that owns the bytes."""
        return self.storage.base.tensor_id

    @property
    def access_count(self) -> int:
        """How many operations of this iteration have read or written the bytes."""
        return self.storage.base.access_count

    @property
    def timestamp(self) -> float:
        """When the last access began: seconds of device time from the iteration's start, without stalls."""
        return self.storage.base.timestamp

    @property
    def status(self) -> Status:
        """Where the bytes are: on the device (IN), the host (OUT), SWAPPING_OUT or _IN, or nowhere (RECOMPUTE)."""
        return self.storage.base.status

    @property
    def inputs(self) -> tuple[int, ...]:
        """Ids of the tensors that it was computed from in this iteration; () for a leaf or an older value."""
        return tuple(storage.base.tensor_id for storage in self.storage.inputs)

    @property
    def operation_name(self) -> str:
        """The operation that computed it in this iteration; "" for a leaf or an older value."""
        return self.storage.operation_name


class _Gone:
    """The ``storage`` of a released or donated handle: every use of it raises an error that says so."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        raise UserError("this tensor is gone: it was released, or donated to an operation that may write over it "
                        "(donate); keep x.alias() if it is needed afterwards")


GONE: Any = _Gone()
SHOWN = 1000  # ``repr`` shows all elements of a tensor that has no more than these


class Tensor(TensorInfo, Surface):
    """A handle on a Storage. Its constructor does not count a use: the storage must have counted it (see ``alias``)."""

    __slots__ = ("storage", "donated", "__weakref__")
    __array_priority__ = 100.0  # numpy leaves `array * tensor` to us

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.donated = False

    def __del__(self) -> None:
        try:
            storage = self.storage
        except AttributeError:  # its construction failed
            return
        if storage is not GONE:
            storage.release()

    def release(self) -> None:
        """End this handle now, rather than when Python collects it; it must not be used again."""
        storage, self.storage = self.storage, GONE
        storage.release()

    def alias(self) -> Tensor:
        """Return another handle on the same storage."""
        self.storage.retain()
        return Tensor(self.storage)

    @property
    def meta(self) -> Meta:
        """Shape, dtype and layout."""
        return self.storage.meta

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions, in elements."""
        return self.storage.meta.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.storage.meta.shape)

    def numel(self) -> int:
        """Number of elements."""
        return self.storage.meta.size

    @property
    def dtype(self) -> DType:
        """Data type of the elements."""
        return self.storage.meta.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; a view counts its own elements, not those of its base."""
        return self.storage.meta.nbytes

    @property
    def requires_grad(self) -> bool:
        """True if ``backward`` computes a gradient for this tensor.
        Set to True, it makes a result that has no gradient a leaf. Raises ValueError if set to True for integers, or to
        False for a result that gradients flow through, which detach() takes out of the graph."""
        return self.storage.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        storage = self.storage
        if value and not self.dtype.floating:
            raise ShapeError(f"only floating-point numbers have gradients, not {storage.named()}")
        if storage.requires_grad and storage.operation_name and not value:
            raise ShapeError("requires_grad can be set on leaves only; use detach() first")
        if value and not storage.requires_grad and storage.call is not None or storage.severed is not None:
            current().make_leaf(storage)
        storage.requires_grad = value

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` accumulated in this leaf, or None.
        Raises ShapeError if it is set to a tensor of another shape or dtype, WrongKind for anything but a tensor."""
        gradient: Tensor | None = self.storage.grad
        return gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise WrongKind(f"a gradient is a tensor or None, not a {type(value).__name__}")
            if value.shape != self.shape or value.dtype is not self.dtype:
                raise ShapeError(f"a gradient of {value.meta} does not fit {self.storage.named()}: it has its shape "
                                 "and dtype")
        self.storage.grad = value

    def numpy(self) -> np.ndarray:
        """Return a NumPy copy of the values; waits for the device. NaN (or zero) on a device that only simulates."""
        return current().read(self.storage)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a copy of the values for another library, in the memory of the device. Waits for the device once.
        The options are the array API's: stream, max_version, dl_device, copy."""
        executor = current()
        return executor.look(self.storage, executor.device.share).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return current().device.dlpack_device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Say where the values lie, without a copy; valid until the next operation, which may move or evict them.
        Waits for the device once. AttributeError on devices that are no GPUs."""
        executor = current()
        if executor.device.dlpack_device[0] == 1:  # asked by hasattr: no reason to wait for anything
            raise AttributeError(f"the memory of {executor.device.name} is not CUDA's")
        described: dict[str, Any] = executor.look(self.storage, executor.device.interface)
        return described

    def item(self) -> Any:
        """Return the value of a tensor of one element as a Python number. NaN on a device that only simulates.
        Raises ValueError for a tensor of several elements."""
        if self.storage.meta.size != 1:
            raise ValueError(f"item() needs one element, not {self.numel()}: shape {self.shape}")
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        if self.storage is GONE:
            return "Tensor(gone)"
        made_by = f", {self.operation_name}" if self.operation_name else ""
        return f"Tensor({self._values()}{self.meta}, id {self.tensor_id}, {self.status.name}{made_by})"

    def _values(self) -> str:
        """Return the values as NumPy prints them; "" if they cannot be read."""
        try:
            if not current().device.has_values:
                return ""
            return f"{np.array2string(self.numpy(), separator=', ', prefix='Tensor(', threshold=SHOWN)}, "
        except UserError:  # of another runtime or thread, or lost: what is known of it is shown all the same
            return ""

    __hash__ = object.__hash__  # as == compares values


Needs = tuple[bool, ...]  # for each input of a call: True if it requires a gradient
Gradients = tuple[Tensor | None, ...]  # the result of an operation's ``vjp``: a gradient, or None, for each input
