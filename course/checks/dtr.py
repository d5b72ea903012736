"""Checks of lesson 5: the score of DTR, the price of a neighbourhood, and the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checks.verdict import Case, first_difference, judged
from minidl.plan.costs import Costs
from minidl.plan.policy import Pressure, Residency
from minidl.policies.literature.dtr import Dtr

MADE_BY = {"a": ["x"], "b": ["a"], "c": ["b"], "d": ["c"], "e": ["d"], "f": ["b"]}
SECONDS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0, "e": 16.0, "f": 32.0}


@judged("Twice the bytes or twice as long unused halve the regret.")
def score(answer: Any) -> str:
    """Exercise 1."""
    return first_difference(answer, [((2.0, 4, 0), 0.5), ((2.0, 4, 1), 0.25), ((1.0, 10, 9), 0.01), ((0.0, 8, 3), 0.0)])


@judged("Between two dropped tensors a third is dear: without it their replays become one.")
def price(answer: Any) -> str:
    """Exercise 2."""
    cases: list[Case] = [((MADE_BY, SECONDS, set(), "c"), 4.0), ((MADE_BY, SECONDS, {"b"}, "c"), 6.0),
                         ((MADE_BY, SECONDS, {"a", "b"}, "c"), 7.0), ((MADE_BY, SECONDS, {"d"}, "c"), 12.0),
                         ((MADE_BY, SECONDS, {"d", "e", "b"}, "c"), 30.0), ((MADE_BY, SECONDS, {"a", "e"}, "c"), 4.0),
                         ((MADE_BY, SECONDS, {"c", "f", "a"}, "b"), 39.0)]
    return first_difference(answer, cases)


def resident(tensor_id: int, nbytes: int, idle: int, seconds: float | None) -> Residency:
    """A tensor on the device, as a policy is shown it."""
    return Residency(tensor_id, nbytes, 0, 0, 1, seconds is None, False, seconds, idle)


ROOMS: Sequence[list[Residency]] = (
    [resident(1, 4, 0, 1.0), resident(2, 8, 0, 1.0), resident(3, 4, 9, 1.0), resident(4, 4, 0, 0.5)],
    [resident(-1, 1 << 30, 100, None), resident(5, 64, 3, 2.0), resident(6, 32, 7, 2.0), resident(7, 1, 0, 0.0)],
    [resident(-2, 16, 5, None)])


@judged("minidl's own `dtr` ranks these tensors in the same order.")
def ranking(answer: Any) -> str:
    """Exercise 3."""
    pressure = Pressure(1, 0, 0, Costs(1.0, 1.0, 0.0))
    return first_difference(answer, [((room,), [victim.tensor_id for victim in Dtr().victims(room, pressure)])
                                     for room in ROOMS])
