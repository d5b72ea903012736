"""Checks of lesson 4: checkpoints in a chain, replays, memory saving per second by hand, and which way is cheaper."""

from __future__ import annotations

from typing import Any

from checks.verdict import Case, first_difference, judged
from minidl.meta import Algorithm
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.capuchin.msps import GapCandidate, Recomputation

MIB = 1 << 20
GRAPH = {"a": ["x"], "b": ["a"], "c": ["b"], "d": ["b", "c"], "e": ["d", "a"], "f": ["x", "w"]}


@judged("It is the square root: the checkpoints and the stretch between them are in balance.")
def spacing(answer: Any) -> str:
    """Exercise 1."""
    for n in (9, 10, 100, 400, 1000):
        found = answer(n)
        if not isinstance(found, int) or not 1 <= found <= n:
            return ("There is no answer so far: it returns None." if found is None else
                    f"For {n} layers it returns {found!r}, and a whole number from 1 to {n} is wanted.")
        held, least = -(-n // found) + found, min(-(-n // k) + k for k in range(1, n + 1))
        if held > least:
            return f"For {n} layers a checkpoint every {found} takes {held} bytes; {least} are enough."
    return ""


@judged("The way back ends at what is there, and goes through what is not.")
def replayed(answer: Any) -> str:
    """Exercise 2."""
    cases: list[Case] = [((GRAPH, {"x", "w", "b"}, "c"), {"c"}), ((GRAPH, {"x", "w"}, "c"), {"a", "b", "c"}),
                         ((GRAPH, {"x", "w", "b"}, "e"), {"a", "c", "d", "e"}), ((GRAPH, {"x", "w", "f"}, "f"), set()),
                         ((GRAPH, {"x", "d"}, "e"), {"a", "e"})]
    return first_difference(answer, cases)


def chain() -> Trace:
    """The paper's T1 -> T2 -> T3 -> T4 in 1, 2, 4 and 8 ms (tensors 1 to 4), a peak (9), then T4, T2, T1 are read."""
    def call(reads: tuple[int, ...], makes: int, ms: float, frees: tuple[int, ...] = ()) -> TraceCall:
        return TraceCall("work", reads, (makes,), ms / 1e3, (Algorithm("", ms / 1e3),), frees, replayable=makes != 9)

    calls = (call((-1,), 1, 1), call((1,), 2, 2), call((2,), 3, 4), call((3,), 4, 8, (3,)), call((), 9, 1, (9,)),
             call((4,), 10, 1), call((2,), 11, 1), call((1,), 12, 1))
    return Trace(calls, {t: TraceTensor(t, MIB, t < 0) for t in (-1, 1, 2, 3, 4, 9, 10, 11, 12)})


def by_the_engine() -> dict[str, float]:
    """What minidl's own algorithm says of the exercise, in ms."""
    trace = chain()
    facts = Lifetimes.of(trace)
    candidates = [GapCandidate(t, MIB, facts.uses[t][-2], facts.uses[t][-1]) for t in (1, 2, 4)]
    found = Recomputation(facts, lambda k: round(trace.calls[k].seconds * 1e9), candidates,
                          lambda tensor_id, call: False)
    t1, t2, t4 = (found.candidates[t] for t in (1, 2, 4))

    def ms(candidate: GapCandidate) -> float:
        return (candidate.overhead or 0) / 1e6

    found.recompute(t2)
    answers = {"T4 after T2": ms(t4), "T1 after T2": ms(t1)}
    found.recompute(t4)
    return answers | {"T1 after T2 and T4": ms(t1)}


@judged("T4 now starts from T1 and takes T2's time, too; T1 is made once more for each replay that starts from it.")
def by_hand(answer: Any) -> str:
    """Exercise 3."""
    expected = by_the_engine()
    missing = [name for name in expected if answer.get(name) is None]
    if missing:
        return f"There is no answer so far for {', '.join(missing)}."
    wrong = [name for name, ms in expected.items() if answer[name] != ms]
    return f"It is not {answer[wrong[0]]} ms for {wrong[0]}." if wrong else ""


@judged("Per byte: a large tensor may cost more than a small one and still be the better choice.")
def cheaper(answer: Any) -> str:
    """Exercise 4."""
    return first_difference(answer, [((1.0, 4, 2.0, 4), "swap"), ((2.0, 4, 1.0, 4), "recompute"),
                                     ((2.0, 100, 1.0, 10), "swap"), ((1.0, 10, 3.0, 100), "recompute"),
                                     ((1.0, 4, 1.0, 4), "recompute")])
