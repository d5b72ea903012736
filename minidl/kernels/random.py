"""Counter-based random bits: a function of (seed, position) alone.

The same formula serves Python integers, NumPy uint32 arrays, Numba and CUDA. The masks keep wider integers within 32
bits and change nothing for types that wrap around (NumPy *arrays*; its scalars would warn, so pass plain integers
instead).
"""

from typing import Any

MASK = 0xFFFFFFFF


def low(h: Any) -> Any:
    """Return the lower 32 bits of h; a device may replace this function by a conversion to a 32-bit integer."""
    return h & MASK


def random_bits(key: Any, position: Any) -> Any:
    """Return 32 random bits for a 32-bit key and a position below 2^32.

    Two rounds of a multiply-xorshift finaliser, each a bijection in which all output bits depend on all input bits. The
    key is added between the rounds: before the first round it would only permute the positions.
    """
    h = position ^ 0x9E3779B9
    for _ in range(2):
        h = h ^ (h >> 16)
        h = low(h * 0x7FEB352D)
        h = h ^ (h >> 15)
        h = low(h * 0x846CA68B)
        h = h ^ (h >> 16)
        h = low(h + key)
    return h


def fold_seed(seed: int) -> int:
    """Return the 32-bit key of a non-negative seed of any size; neighbouring seeds get unrelated keys."""
    key: int = random_bits(0, seed & MASK)
    while seed := seed >> 32:
        key = random_bits(key, seed & MASK)
    return key
