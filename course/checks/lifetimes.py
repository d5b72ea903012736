"""Checks of lesson 2: a game of placement, fragmentation, and a placement of one's own."""

from __future__ import annotations

from typing import Any

from checks.verdict import first_difference, judged
from minidl.lab.lifetimes import Lifetime
from minidl.lab.placement import PlacedBuffers, greedy_by_size, lifetimes_of
from minidl.lab.placement import check as check_placement
from minidl.lab.training_step import trace_of

GAME = [Lifetime("a", 1, 4, 2), Lifetime("b", 1, 5, 1), Lifetime("c", 2, 4, 2), Lifetime("d", 3, 9, 2),
        Lifetime("e", 3, 9, 2), Lifetime("f", 4, 8, 3), Lifetime("g", 5, 8, 1)]
FLOOR = 9  # live at time 3: a, b, c, d, e. Best fit needs 12, the largest first 10


def overlap(buffers: list[Lifetime], offsets: dict[str, int]) -> str:
    """What is wrong with a placement; "" if no two buffers share a byte at one time."""
    lost = [one.id for one in buffers if offsets.get(one.id) is None]
    if lost:
        return f"There is no answer so far for {', '.join(lost[:8])}."
    top = max(offsets[one.id] + one.size for one in buffers)
    try:
        check_placement(PlacedBuffers(offsets, top), buffers)
    except AssertionError as error:
        return f"Two share memory: {error}."
    return ""


@judged("Best fit needs 12 units and the largest first 10. That is what knowing the future is worth.")
def game(answer: Any) -> str:
    """Exercise 1."""
    wrong = overlap(GAME, answer)
    top = 0 if wrong else max(answer[one.id] + one.size for one in GAME)
    return wrong or (f"It is a placement, and takes {top} units; {FLOOR} are enough." if top > FLOOR else "")


@judged("Many holes are no harm as long as one of them is large; what counts is what the largest leaves out.")
def fragmentation(answer: Any) -> str:
    """Exercise 2."""
    return first_difference(answer, [(([8],), 0.0), (([4, 4],), 0.5), (([1, 2, 1, 12],), 0.25), (([],), 0.0)])


@judged("It needs no more than the laboratory's own function of this kind.")
def largest_first(answer: Any) -> str:
    """Exercise 3: on the game, and on the buffers of a training step."""
    for buffers in (GAME, lifetimes_of(trace_of("mlp", 64)), lifetimes_of(trace_of("resnet18", 8))):
        found = answer(list(buffers))
        if found is None:
            return "There is no answer so far: it returns None."
        wrong = overlap(buffers, found)
        if wrong:
            return wrong
        top, least = max(found[one.id] + one.size for one in buffers), greedy_by_size(buffers).peak_bytes
        if top > least:
            return f"It is a placement of {len(buffers)} buffers, and takes {top}; {least} are enough."
    return ""
