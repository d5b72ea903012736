"""The functions of ``torch.cuda`` that programs call, for the current runtime's device."""

from minidl.context import current


def is_available() -> bool:
    """True if the current runtime's device is a GPU."""
    return current().device.dlpack_device[0] == 2


def device_count() -> int:
    """1 on a GPU, else 0."""
    return int(is_available())


def synchronize(*_: object) -> None:
    """Block the host until all calls so far have run on the device."""
    current().finish()


def empty_cache() -> None:
    """Does nothing: the runtime allocates its arena once and keeps it."""


def manual_seed_all(seed: int) -> None:
    """Does nothing: ``minidl.manual_seed`` already seeds the runtime's only device."""
