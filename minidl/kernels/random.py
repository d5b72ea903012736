"""Counter-based random bits: a function of (seed, position) and of nothing else. Knows no arrays and no device.

The same two formulas serve Python integers, NumPy uint32 arrays, Numba and CUDA. The masks keep wider integers within
32 bits and change nothing where wrap-around is built in (NumPy *arrays*; its scalars would warn, so pass plain
integers instead).
"""

from typing import Any

MASK = 0xFFFFFFFF


def mix(h: Any) -> Any:
    """A bijection of 32-bit integers whose output bits all depend on all input bits (multiply-xorshift finaliser)."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & MASK
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & MASK
    return h ^ (h >> 16)


def random_bits(key: Any, position: Any) -> Any:
    """32 random bits for a 32-bit key and a position below 2^32; positions beyond that repeat modulo 2^32.

    The position is mixed before the key is added: with one round, the bits of two keys would be permutations of
    each other by an exclusive or.
    """
    return mix((mix(position ^ 0x9E3779B9) + key) & MASK)


def fold_seed(seed: int) -> int:
    """The 32-bit key of a seed of any size; neighbouring seeds get unrelated keys."""
    key = 0
    while True:
        key = mix((key + (seed & MASK) + 0x9E3779B9) & MASK)
        seed >>= 32
        if seed <= 0:
            return key
