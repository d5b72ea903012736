"""What an exercise's check answers: right or not yet, and a sentence about why. Knows no exercise."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

CLOSE = 1e-6  # relative: numbers worked out in another order agree to this
Case = tuple[tuple[Any, ...], Any]  # what an answer is called with, and what it should return


@dataclass(frozen=True)
class Verdict:
    """``right``, and what a student is told."""

    right: bool
    says: str

    def _repr_html_(self) -> str:
        mark, colour = ("&#10003; Right.", "#228833") if self.right else ("&#10007; Not yet.", "#aa3377")
        style = f"border-left: 4px solid {colour}; padding-left: 8px"
        return f'<p style="{style}"><b>{mark}</b> {html.escape(self.says)}</p>'


@dataclass(frozen=True)
class Check:
    """Called with an answer, it gives a verdict. ``complaint`` tells what is wrong with it ("" if nothing is), and
    ``praise`` what a right one has shown. An answer that is None, or that ends with an error, is not yet right."""

    complaint: Callable[[Any], str]
    praise: str

    def __call__(self, answer: Any) -> Verdict:
        if answer is None:
            return Verdict(False, "There is no answer so far.")
        try:
            wrong = self.complaint(answer)
        except Exception as error:  # whatever a student's function does is an answer
            wrong = f"It ends with {type(error).__name__}: {error}"
        return Verdict(not wrong, wrong or self.praise)


def judged(praise: str) -> Callable[[Callable[[Any], str]], Check]:
    """Makes a check of a function that tells what is wrong with an answer."""
    return lambda complaint: Check(complaint, praise)


def same(found: Any, expected: Any) -> bool:
    """Whether two answers agree, numbers up to rounding."""
    if isinstance(expected, float):
        return isinstance(found, int | float) and isclose(found, expected, rel_tol=CLOSE, abs_tol=1e-15)
    if isinstance(expected, list):
        return isinstance(found, Sequence) and len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def first_difference(answer: Callable[..., Any], cases: Sequence[Case]) -> str:
    """A sentence about the first case that an answer returns something else for; "" if there is none."""
    for arguments, expected in cases:
        found = answer(*arguments)
        if found is None:
            return "There is no answer so far: it returns None."
        if not same(found, expected):
            given = ", ".join(map(repr, arguments))
            shown = given if len(given) < 160 else f"{given[:160]}..."
            return f"For {shown} it returns {found!r}, and {expected!r} is wanted."
    return ""
