"""Solutions of lesson 9."""

from __future__ import annotations

from itertools import zip_longest


def ordered_sum(held: list[list[float]]) -> float:
    """From the first slice to the last one."""
    total = 0.0
    for values in held:
        for value in values:
            total += value
    return total


def parts_at(programs: list[list[str]]) -> int:
    """A program that has ended makes another exchange than the others: none."""
    return next((n for n, each in enumerate(zip_longest(*programs)) if len(set(each)) > 1), -1)


def exchanges(sizes: list[int], full: int) -> list[int]:
    """A large gradient does not join the bucket that waits."""
    sent, bucket = [], 0
    for size in sizes:
        if size >= full:
            sent.append(size)
            continue
        bucket += size
        if bucket >= full:
            sent.append(bucket)
            bucket = 0
    return [*sent, bucket] if bucket else sent


def beside(seconds: float, copy_s: float, share: float) -> float:
    """While the copy runs, the exchange has the rest of the link."""
    done = copy_s * (1 - share)
    return seconds / (1 - share) if done >= seconds else copy_s + seconds - done


def kept_bytes(parameters: int, n: int, divided: str) -> int:
    """Parameters and gradients once each, states twice."""
    whole = 4 * parameters
    states = 2 * whole // (1 if divided == "nothing" else n)
    return whole + whole // (n if divided == "gradients" else 1) + states
