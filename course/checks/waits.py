"""Checks of lesson 10: when work starts, what must wait, and which wait is missing in three planted trainings."""

from __future__ import annotations

from functools import cache
from typing import Any

from checks.verdict import first_difference, judged, same
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, STREAM_NAMES
from virtual import Training, train

Kind = tuple[int, int]  # the stream that waits, and the one that it waits for
Piece = tuple[str, list[tuple[int, int]], list[tuple[int, int]]]

PLANTED = {"A": (COPY_OUT, COMPUTE), "B": (COMPUTE, COPY_IN), "C": (COMPUTE, COPY_OUT)}
SHORT = 200  # pieces of work: each missing wait does harm within them, if it does any


def words(missing: Kind) -> str:
    """A kind of wait in words, like "compute on copy-in"."""
    stream, on = missing
    return f"{STREAM_NAMES[stream]} on {STREAM_NAMES[on]}"


@cache
def lacking(kind: Kind | None, *, poisoned: bool = False) -> Training:
    """The training without one kind of wait; None: with all."""
    return train(kind, poisoned=poisoned)


def planted(name: str, *, poisoned: bool = False) -> Training:
    """The training A, B or C, which lacks one kind of wait."""
    return lacking(PLANTED[name], poisoned=poisoned)


def right() -> Training:
    """The training with all waits."""
    return lacking(None)


@judged("minidl's virtual clock does this sum for every piece of work.")
def starts(answer: Any) -> str:
    """Exercise 1."""
    return first_difference(answer, [
        (([("compute", 2.0, []), ("compute", 1.0, [])],), [0.0, 2.0]),
        (([("compute", 2.0, []), ("copy-out", 3.0, [0]), ("compute", 1.0, [])],), [0.0, 2.0, 2.0]),
        (([("compute", 2.0, []), ("copy-out", 3.0, []), ("compute", 1.0, [1])],), [0.0, 0.0, 3.0]),
        (([("compute", 1.0, []), ("copy-out", 4.0, [0]), ("compute", 1.0, []), ("copy-in", 2.0, [1]),
           ("compute", 1.0, [3, 1])],), [0.0, 1.0, 1.0, 5.0, 7.0]), (([],), [])])


@judged("Two pieces of work may only read the same bytes at once, and one stream needs no waits for itself.")
def must_wait(answer: Any) -> str:
    """Exercise 2."""
    kernel: Piece = ("compute", [(0, 8)], [(8, 16)])
    copy: Piece = ("copy-out", [(8, 16)], [])
    reads: Piece = ("copy-out", [(0, 8)], [])
    brings: Piece = ("copy-in", [], [(4, 6)])
    for earlier, later, expected in ((kernel, copy, True), (copy, kernel, True), (kernel, reads, False),
                                     (kernel, brings, True), (kernel, kernel, False), (brings, reads, True),
                                     (brings, copy, False), (("compute", [], [(16, 24)]), copy, False),
                                     (("copy-in", [], [(0, 4), (6, 9)]), ("compute", [], [(2, 3)]), True)):
        wrong = first_difference(answer, [((earlier, later), expected)])
        if wrong:
            return wrong
    return ""


@judged("Each was seen in a history of five pieces of work. The step of the first wrong loss would not have shown it.")
def puzzles(answer: Any) -> str:
    """Exercise 3."""
    missing = [name for name in PLANTED if answer.get(name) is None]
    if missing:
        return f"There is no answer so far for {', '.join(missing)}."
    wrong = [name for name, kind in PLANTED.items() if not same(answer[name], words(kind))]
    return f"In training {wrong[0]}, work of this kind waits: {answer[wrong[0]]}." if wrong else ""


@judged("It finds all four kinds, and needs no right training to compare with.")
def missing_wait(answer: Any) -> str:
    """Exercise 4. Logs of trainings, among them one that lacks nothing, and one that lacks a wait that others imply."""
    for kind in (*PLANTED.values(), (COPY_IN, COMPUTE)):
        found = answer(lacking(kind).log[:SHORT])
        if found is None:
            return "There is no answer so far: it returns None."
        if found != words(kind):
            return f"For the training that lacks {words(kind)!r} it returns {found!r}."
    for unharmed in (None, (COPY_IN, COPY_OUT)):
        if (found := answer(lacking(unharmed).log[:SHORT])) != "":
            return f"For a training in which all work is in order it returns {found!r}."
    return ""
