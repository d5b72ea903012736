"""Functions of ``torch.cuda`` for the current runtime's device; outside of every runtime most raise UserError."""

from minidl.context import current


def is_available() -> bool:
    """True if the current runtime's device is a GPU. Raises UserError outside of every ``with runtime:``."""
    return current().device.dlpack_device[0] == 2


def device_count() -> int:
    """1 if the current runtime's device is a GPU, else 0. Raises UserError outside of every ``with runtime:``."""
    return int(is_available())


def synchronize(*_: object) -> None:
    """Block the host until all calls so far have run on the device."""
    current().finish()


def empty_cache() -> None:
    """Does nothing: the runtime allocates its arena once and keeps it."""


def manual_seed_all(seed: int) -> None:
    """Does nothing: ``minidl.manual_seed`` already seeds the runtime's only device."""
