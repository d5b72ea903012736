"""Functions of ``torch.cuda`` for the current runtime's device; only ``synchronize`` raises UserError without one."""

from minidl.context import current
from minidl.errors import UserError


def is_available() -> bool:
    """Return True if the current runtime's device is a GPU; False also outside of every ``with runtime:``."""
    try:
        return current().device.dlpack_device[0] == 2
    except UserError:
        return False


def device_count() -> int:
    """Return 1 if the current runtime's device is a GPU, else 0."""
    return int(is_available())


def synchronize(*_: object) -> None:
    """Block the host until all calls so far have run on the device."""
    current().finish()


def empty_cache() -> None:
    """Does nothing: the runtime allocates its arena once and keeps it."""


def manual_seed_all(seed: int) -> None:
    """Does nothing: ``minidl.manual_seed`` already seeds the runtime's only device."""
