"""Arithmetic for cutting work into pieces, shared by products and convolutions."""

from minidl.kernels.cpu.vectors import lane_count


def pieces(count: int, size: int) -> int:
    """Return the least number of pieces of at most ``size`` elements that ``count`` elements can be cut into."""
    return -(-count // size)


def even(count: int, size: int) -> int:
    """Return the smallest size of pieces with which ``count`` has no more pieces than with ``size``."""
    return pieces(count, pieces(count, size))


def up(count: int, unit: int) -> int:
    """Return ``count`` rounded up to a multiple of ``unit``."""
    return pieces(count, unit) * unit


def lanes(itemsize: int) -> int:
    """Return the number of elements of ``itemsize`` bytes in a vector register."""
    return lane_count(8 * itemsize)


def panel(itemsize: int) -> int:
    """Return the columns of a panel of a product's right operand (product.py): three vector registers."""
    return 3 * lanes(itemsize)
