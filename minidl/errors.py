"""The errors that a user can cause. Imports nothing of minidl.

Each carries the numbers that explain it; ``train.py`` prints one as a single message and exits with code 2.
"""


class UserError(Exception):
    """Something the user asked for cannot be done; the message says why, with the numbers."""


class ShapeError(UserError, ValueError):
    """Tensors of these shapes do not fit this operation."""


class WrongKind(UserError, TypeError):
    """Something of another kind than the one that is needed: a function in the place of a module, say."""


class NoSuchIndex(ShapeError, IndexError):
    """An index that is outside of a tensor."""


class OutOfMemory(UserError, MemoryError):
    """An operation's working set does not fit what the policy could free.

    op            the operation's name
    need_bytes    what it needs at once, with what it has in use already
    budget_bytes  the device memory that there is
    host_full     whether more host memory might have helped: what could have left the device found no room there
    """

    def __init__(self, message: str, *, op: str = "", need_bytes: int = 0, budget_bytes: int = 0,
                 host_full: bool = False) -> None:
        super().__init__(message)
        self.op = op
        self.need_bytes = need_bytes
        self.budget_bytes = budget_bytes
        self.host_full = host_full


class Unsuitable(UserError):
    """A policy cannot plan this case at all: the network, or the budget, is none that it was made for."""


class Unrecoverable(UserError, RuntimeError):
    """A value was asked for whose bytes are gone and which cannot be recomputed."""


class DeviceError(UserError, RuntimeError):
    """A device, or a library of its vendor, refused a call; the message has the vendor's own words."""


class HostShort(DeviceError):
    """The system gives no more host memory for copies than ``had_bytes``, from the pool's beginning on."""

    def __init__(self, message: str, *, had_bytes: int) -> None:
        super().__init__(message)
        self.had_bytes = had_bytes
