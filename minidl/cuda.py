"""The functions of ``torch.cuda`` that programs call, for the current runtime's device."""

from minidl.context import current


def is_available() -> bool:
    """True if the current runtime's device is a GPU."""
    return current().device.dlpack_device[0] == 2


def device_count() -> int:
    """1 on a GPU, else 0."""
    return int(is_available())


def synchronize(*_: object) -> None:
    """Wait until all that was called has been carried out."""
    current().finish()


def empty_cache() -> None:
    """Nothing: the runtime's arena is its own."""


def manual_seed_all(seed: int) -> None:
    """Nothing: ``manual_seed`` is for the runtime's one device."""
