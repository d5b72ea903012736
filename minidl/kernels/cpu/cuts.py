"""How work is cut into pieces: arithmetic of extents, shared by products and convolutions."""

from minidl.kernels.cpu.vectors import lane_count


def pieces(count: int, size: int) -> int:
    """Pieces of at most ``size`` that make up ``count``."""
    return -(-count // size)


def even(count: int, size: int) -> int:
    """The least size for which there are no more pieces than of ``size``."""
    return pieces(count, pieces(count, size))


def up(count: int, unit: int) -> int:
    """``count`` rounded up to whole units."""
    return pieces(count, unit) * unit


def lanes(itemsize: int) -> int:
    """Elements of a vector."""
    return lane_count(8 * itemsize)


def panel(itemsize: int) -> int:
    """Columns of a panel of a product's right operand (product.py): three vectors."""
    return 3 * lanes(itemsize)
