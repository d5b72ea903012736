"""Solutions of lesson 5."""

from __future__ import annotations

from collections.abc import Sequence

from minidl.plan.policy import Residency


def score(seconds: float, nbytes: int, idle_calls: int) -> float:
    """h of the DTR paper, with staleness in calls."""
    return seconds / (nbytes * (idle_calls + 1))


def price(made_by: dict[str, list[str]], seconds: dict[str, float], missing: set[str], tensor: str) -> float:
    """Up over missing inputs, and down over missing readers; never up and then down again."""
    read_by: dict[str, list[str]] = {}
    for made, given in made_by.items():
        for source in given:
            read_by.setdefault(source, []).append(made)
    found = {tensor}
    for edges in (made_by, read_by):
        waiting = list(edges.get(tensor, ()))
        while waiting:
            other = waiting.pop()
            if other in missing and other not in found:
                found.add(other)
                waiting += edges.get(other, ())
    return sum(seconds[each] for each in found)


def ranking(resident: Sequence[Residency]) -> list[int]:
    """By score, then by id; without those that have no price."""
    scored = [(score(r.recompute_seconds, r.nbytes, r.idle_calls), r.tensor_id)
              for r in resident if r.recompute_seconds is not None]
    return [tensor_id for _, tensor_id in sorted(scored)]
