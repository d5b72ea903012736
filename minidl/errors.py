"""The errors that a user can cause. Imports nothing of minidl.

Each message has the numbers that explain the error, if any do; a command prints the message and exits with code 2.
"""


class UserError(Exception):
    """The user asked for something that cannot be done; the message says why."""


class ShapeError(UserError, ValueError):
    """Tensors of these shapes do not fit this operation."""


class WrongKind(UserError, TypeError):
    """An argument has the wrong kind: a function in the place of a module, for instance."""


class NoSuchIndex(ShapeError, IndexError):
    """An index is outside of a tensor."""


class OutOfMemory(UserError, MemoryError):
    """The inputs, outputs and workspace of one operation do not fit the device, even after all possible evictions.

    op            the operation's name
    need_bytes    bytes that the operation needs at once, its operands included
    budget_bytes  bytes of device memory that the runtime may use
    host_full     True if more host memory might have helped: tensors could not be evicted because it was full
    """

    def __init__(self, message: str, *, op: str = "", need_bytes: int = 0, budget_bytes: int = 0,
                 host_full: bool = False) -> None:
        super().__init__(message)
        self.op = op
        self.need_bytes = need_bytes
        self.budget_bytes = budget_bytes
        self.host_full = host_full


class Unsuitable(UserError):
    """A policy cannot plan this case at all: it was not made for such a network, or for such a budget."""


class Unrecoverable(UserError, RuntimeError):
    """A tensor is needed, but its bytes were freed or lost, and it cannot be recomputed."""


class DeviceError(UserError, RuntimeError):
    """A device, or a library of its vendor, reported an error; the message has the vendor's own words."""


class DeviceShort(DeviceError):
    """A call of a vendor's library failed because device memory is short."""


class HostShort(DeviceError):
    """The system gives less host memory than the host pool was promised.

    had_bytes: the bytes, from the beginning of the pool, that could be allocated.
    """

    def __init__(self, message: str, *, had_bytes: int) -> None:
        super().__init__(message)
        self.had_bytes = had_bytes
