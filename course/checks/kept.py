"""Checks of lesson 1: bytes, what is live during each call, and the largest batch."""

from __future__ import annotations

from typing import Any

from checks.verdict import Case, first_difference, judged
from minidl.lab.training_step import trace_of
from minidl.planning.lifetimes import Lifetimes

Calls = list[tuple[list[str], list[str], list[str]]]
FORWARD_AND_BACK: Calls = [
    (["x", "w1"], ["a"], []), (["a", "w2"], ["b"], []), (["b"], ["loss"], []),
    (["loss", "b"], ["gb"], ["loss", "b"]), (["gb", "a"], ["g2"], []), (["gb", "w2"], ["ga"], ["gb", "a"]),
    (["ga", "x"], ["g1"], ["ga", "x"])]
SIZES = {"x": 8, "w1": 3, "w2": 2, "a": 16, "b": 4, "loss": 1, "gb": 4, "g2": 2, "ga": 16, "g1": 3}
LIVE = [29, 33, 34, 38, 35, 51, 34]  # x, w1, w2 = 13; + a = 29; + b; + loss; + gb; - loss - b + g2; + ga; - gb - a + g1
NETWORK, BATCHES, BUDGETS = "vgg16", (64, 128), (9 << 30, 12 << 30, 15 << 30)


@judged("Four bytes for each number: a batch of 64 after the first convolution of ResNet-50 is 196 MiB.")
def feature_bytes(answer: Any) -> str:
    """Exercise 1."""
    cases: list[Case] = [((1, 1, 1, 1), 4), ((64, 64, 112, 112), 64 * 64 * 112 * 112 * 4), ((2, 3, 5, 7), 840)]
    return first_difference(answer, cases)


@judged("What a call frees is still there while it runs: its inputs must not go under its hands.")
def live_bytes(answer: Any) -> str:
    """Exercise 2."""
    return first_difference(answer, [(([([], ["a"], []), (["a"], ["b"], ["a"]), (["b"], [], ["b"])], {"a": 5, "b": 7}),
                                      [5, 12, 7]), ((FORWARD_AND_BACK, SIZES), LIVE)])


def peak(batch: int) -> int:
    """The bytes that the engine's own trace of a step has live at its peak."""
    return max(Lifetimes.of(trace_of(NETWORK, batch)).live_bytes)


@judged("The weights are paid for once. The engine agrees: what you name fits, and two more do not.")
def largest_batch(answer: Any) -> str:
    """Exercise 3: the answer must fit as the engine counts it, and two examples more must not."""
    peaks = {batch: peak(batch) for batch in BATCHES}
    for budget in BUDGETS:
        found = answer(dict(peaks), budget)
        if found is None:
            return "There is no answer so far: it returns None."
        if not isinstance(found, int):
            return f"For a budget of {budget} it returns {found!r}, and a whole number of examples is wanted."
        if found < 1 or peak(found) > budget:
            return f"{found} examples of {NETWORK} do not fit into {budget} bytes."
        if peak(found + 2) <= budget:
            return f"More than {found} examples of {NETWORK} fit into {budget} bytes: {found + 2} do."
    return ""
