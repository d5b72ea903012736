"""Solutions of lesson 3."""

from __future__ import annotations

from math import ceil


def free_time(evicted_at: float, back_at: float, out_s: float, in_s: float) -> float:
    """The copy in starts at back_at - in_s at the latest; the copy out has ended at evicted_at + out_s."""
    return (back_at - in_s) - (evicted_at + out_s)


def in_trigger(times: list[float], evict: int, back: int, in_s: float) -> int:
    """From the back-access backwards."""
    start = times[back] - in_s
    return next((n for n in range(back - 1, evict, -1) if times[n] < start), back)


def copy_ends(ready: list[float], seconds: list[float]) -> list[float]:
    """Each begins when it is ready and the link is free."""
    free, ends = 0.0, []
    for asked, takes in zip(ready, seconds, strict=True):
        free = max(free, asked) + takes
        ends.append(free)
    return ends


def corrections(late_s: float, in_s: float) -> int:
    """Each correction gains a twentieth of the copy."""
    return ceil(20 * late_s / in_s)
