"""Solutions of lesson 6."""

from __future__ import annotations

from itertools import pairwise


def gaps(calls: list[int], over: list[bool]) -> list[tuple[int, int]]:
    """Strictly between the two accesses."""
    return [(evict, back) for evict, back in pairwise(calls) if any(over[evict + 1:back])]


def hidden_swaps(candidates: list[tuple[str, int, float]], needed: int) -> list[str]:
    """The longest free time first, as long as bytes are needed and copies can be hidden."""
    taken: list[str] = []
    for name, nbytes, free_time in sorted(candidates, key=lambda candidate: -candidate[2]):
        if needed <= 0 or free_time < 0:
            break
        taken.append(name)
        needed -= nbytes
    return taken


def figure_7(computes: list[float], copies: list[float]) -> tuple[float, float]:
    """The longer of the two in each layer; or the computation alone."""
    return sum(map(max, computes, copies)), sum(computes)


def waited(step_s: float, unmanaged_s: float, replay_s: float) -> float:
    """What neither the program's calls nor replays took."""
    return step_s - unmanaged_s - replay_s
