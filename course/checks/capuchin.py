"""Checks of lesson 6: candidates, hidden swaps, Figure 7, and where a step's time goes."""

from __future__ import annotations

from functools import cache
from typing import Any

from checks.verdict import Case, first_difference, judged
from minidl.lab.training_step import trace_of
from minidl.planning.lifetimes import Lifetimes
from runs import train

NETWORK, BATCH = "lenet", 512
TOLERANCE = 0.05  # of the wait: blocks are slid, and a call may find no room for its fastest algorithm's workspace


def expected_gaps(calls: list[int], over: list[bool]) -> list[tuple[int, int]]:
    """What the first exercise wants."""
    return [(a, b) for a, b in zip(calls, calls[1:], strict=False) if any(over[a + 1:b])]


@judged("Most accesses of a step are no candidates: they are too close, or memory is not short between them.")
def gaps(answer: Any) -> str:
    """Exercise 1: by hand, and all tensors of a step."""
    over = [False, False, True, True, False, False, True, False]
    cases: list[Case] = [(([0, 1, 5], over), [(1, 5)]), (([2, 3, 4], over), []), (([1, 3, 7], over), [(1, 3), (3, 7)]),
                         (([0], over), []), (([5, 7], over), [(5, 7)])]
    facts = Lifetimes.of(trace_of(NETWORK, BATCH))
    short = [live > 0.7 * max(facts.live_bytes) for live in facts.live_bytes]
    cases += [((calls, short), expected_gaps(calls, short)) for calls in facts.uses.values()]
    return first_difference(answer, cases)


@judged("Bytes that nobody needs are not saved, and what cannot be hidden is left to the comparison with replays.")
def hidden_swaps(answer: Any) -> str:
    """Exercise 2."""
    candidates = [("a", 4, 0.1), ("b", 8, 0.9), ("c", 2, -0.2), ("d", 8, 0.5), ("e", 1, 0.0)]
    return first_difference(answer, [((candidates, 8), ["b"]), ((candidates, 9), ["b", "d"]),
                                     ((candidates, 17), ["b", "d", "a"]), ((candidates, 99), ["b", "d", "a", "e"]),
                                     ((candidates, 0), [])])


@judged("Where copies are longer than what they overlap, coupling adds up the differences, layer by layer.")
def figure_7(answer: Any) -> str:
    """Exercise 3."""
    def complaint(computes: list[float], copies: list[float], coupled: float, decoupled: float) -> str:
        return first_difference(lambda *given: None if (found := answer(*given)) is None else list(found),
                                [((computes, copies), [coupled, decoupled])])

    return (complaint([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], 7.0, 6.0)
            or complaint([1.0, 1.0], [0.5, 0.5], 2.0, 2.0) or complaint([1.0, 1.0, 1.0], [4.0, 0.0, 0.0], 6.0, 3.0))


@cache
def steps() -> tuple[float, float, float, float]:
    """(step, unmanaged, replays, waits) in seconds, of a ResNet-18 on demand in 60% of what it needs."""
    free = train("resnet18", 64, steps=1).steps[-1]
    last = train("resnet18", 64, budget=round(0.6 * free.peak_bytes), policy="passive").steps[-1]
    return last.seconds, free.seconds, last.recompute_seconds, last.stall_seconds


@judged("It agrees with what the engine counted while it waited.")
def waited(answer: Any) -> str:
    """Exercise 4: by hand, and against the engine's own clock."""
    wrong = first_difference(answer, [((3.0, 1.5, 0.5), 1.0), ((1.0, 1.0, 0.0), 0.0)])
    step_s, unmanaged_s, replay_s, wait_s = steps()
    found = wait_s if wrong else answer(step_s, unmanaged_s, replay_s)
    if abs(found - wait_s) > TOLERANCE * wait_s:
        return f"The engine counted {wait_s:.4f} s of {step_s:.4f} s, and you {found:.4f}."
    return wrong
