"""Checks of lesson 9: the order of sums, deadlocks, buckets, a shared link, and what ZeRO divides."""

from __future__ import annotations

from typing import Any

from checks.verdict import first_difference, judged
from minidl.device.beside import SharedLink
from minidl.device.clock import COPY_OUT
from minidl.device.profiles import named, shared


@judged("The same bits on one rank, on two and on four: only the order of the slices decides.")
def ordered_sum(answer: Any) -> str:
    """Exercise 1. A sum in another order loses the small numbers, or keeps one that is lost here."""
    return first_difference(answer, [(([[1.0, 2.0], [4.0]],), 7.0), (([[1e16, 1.0], [-1e16, 1.0]],), 1.0),
                                     (([[1e16], [1.0], [1.0], [-1e16]],), 0.0), (([[1.0], [1e16, -1e16]],), 0.0)])


@judged("At that exchange all ranks learn it, also those that have done nothing wrong.")
def parts_at(answer: Any) -> str:
    """Exercise 2."""
    return first_difference(answer, [(([["a", "b"], ["a", "b"]],), -1), (([["a", "b", "c"], ["a", "c"]],), 1),
                                     (([["a", "b"], ["a"], ["a", "b"]],), 1), (([["a"], ["b"], ["a"]],), 0),
                                     (([["a", "a", "b"], ["a", "b"]],), 1), (([[], []],), -1)])


@judged("Small gradients wait for each other, a large one for none; and no plan could move a border.")
def exchanges(answer: Any) -> str:
    """Exercise 3."""
    return first_difference(answer, [(([4, 4, 4], 8), [8, 4]), (([3, 9, 3, 3], 8), [9, 9]), (([8, 8], 8), [8, 8]),
                                     (([1, 20, 1], 8), [20, 2]), (([], 8), [])])


@judged("minidl's simulated link says the same.")
def beside(answer: Any) -> str:
    """Exercise 4. The expected values are those of the simulated devices."""
    cases = []
    for seconds, copy_s, ranks in ((3.0, 0.0, 2), (3.0, 2.0, 4), (1.0, 9.0, 2), (2.0, 2.0, 8)):
        link = SharedLink(shared(named("p100"), ranks))
        link.copied(COPY_OUT, copy_s, copy_s)
        cases.append(((seconds, copy_s, 1 / ranks), link.end_of(0.0, seconds)))
    return first_difference(answer, cases)


@judged("On many ranks parameters remain, a quarter of the whole. ZeRO-3 divides these, too; minidl does not.")
def kept_bytes(answer: Any) -> str:
    """Exercise 5."""
    return first_difference(answer, [((100, 1, "nothing"), 1600), ((100, 2, "nothing"), 1600),
                                     ((100, 2, "states"), 1200), ((100, 2, "gradients"), 1000),
                                     ((800, 8, "gradients"), 4400)])
