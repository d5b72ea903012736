"""Solutions of lesson 4."""

from __future__ import annotations

from math import isqrt

# T4 = T2 + T3 + T4 from T1. T1 = itself, and once for T2's replay; then once more for T4's.
by_hand = {"T4 after T2": 14, "T1 after T2": 2, "T1 after T2 and T4": 3}


def spacing(n: int) -> int:
    """n / k + k is least at the square root."""
    return isqrt(n)


def replayed(made_by: dict[str, list[str]], there: set[str], wanted: str) -> set[str]:
    """Back from what is wanted until something is there."""
    made: set[str] = set()
    missing = [wanted]
    while missing:
        tensor = missing.pop()
        if tensor not in there and tensor not in made:
            made.add(tensor)
            missing += made_by[tensor]
    return made


def cheaper(swap_s: float, swap_bytes: int, replay_s: float, replay_bytes: int) -> str:
    """Seconds a byte, compared without a division."""
    return "swap" if swap_s * replay_bytes < replay_s * swap_bytes else "recompute"
