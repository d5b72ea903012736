"""Finds the largest integer for which a condition holds, with few evaluations of the condition."""

from collections.abc import Callable
from math import ceil, log2

from minidl.outside.stages import Stage, stage


def largest_number(holds: Callable[[int], bool], *, guess: int, most: int, parts: int = 0) -> int:
    """Return the largest n <= ``most`` with holds(n), or 0: first steps that double from ``guess``, then bisection.
    ``parts``: the answer n may be too small by up to n / parts; 0: the answer is exact."""
    with stage("searching the largest batch", units="trials") as search:
        return _search(lambda n: _counted(search, holds, n), search, guess=guess, most=most, parts=parts)


def _counted(search: Stage, holds: Callable[[int], bool], number: int) -> bool:
    held = holds(number)
    search.done += 1
    return held


def _search(holds: Callable[[int], bool], search: Stage, *, guess: int, most: int, parts: int) -> int:
    number = min(max(guess, 1), most)
    low, high, step = 0, most + 1, max(1, number // parts) if parts else 1  # holds(low), not holds(high)
    if holds(number):
        low = number
        while low < most:
            number = min(low + step, most)
            if not holds(number):
                high = number
                break
            low, step = number, 2 * step
    else:
        high = number
        while high > 1:
            number = max(high - step, 1)
            if holds(number):
                low = number
                break
            high, step = number, 2 * step
    search.total = search.done + ceil(log2((high - low) / max(1, low // parts if parts else 1)))
    while high - low > max(1, low // parts if parts else 1):
        search.text = f"searching the largest batch, from {low:,} to {high - 1:,}"
        number = (low + high) // 2
        low, high = (number, high) if holds(number) else (low, number)
    return low
