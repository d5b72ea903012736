"""The facts about an iteration that has ended, from which plans are judged; and the facts on which ranks agree.

Durations and link speeds are those of the slowest rank, and byte limits those of the smallest. Every rank computes the
same facts, so all of them take the same decisions about when to plan and which plan to follow.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from minidl.memory.guided.sequence import Returns
from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace, scaled

Key = TypeVar("Key")


class Ended(NamedTuple):
    """The facts about one iteration.

    known      the number of the known sequence that it followed to its end, or whose plan failed; -1 if there is none
    calls      a digest of its calls, for ranks to compare; "" if ``known`` says it
    gave_up    True if the plan was given up, because an allocation failed
    seconds, stall_seconds   its duration, and the part of it in which computation waited for copies
    returns    how evicted tensors came back
    link       measured seconds per byte of copies out and in; None where too little was copied
    limits, costs   the bytes that a plan may use, and what copies cost"""

    known: int
    calls: str
    gave_up: bool
    seconds: float
    stall_seconds: float
    returns: Returns
    link: tuple[float | None, float | None]
    limits: Limits
    costs: Costs


def united(reports: Sequence[Ended | None]) -> Ended | None:
    """Return the facts on which the ranks agree; None if they made different calls, or one has no report of use.
    Times come from the slowest rank, limits from the smallest. reports: one of each rank, in rank order, or of a device
    alone; None in place of a report without use."""
    if len(reports) == 1:
        return reports[0]
    every = [report for report in reports if report is not None]
    if not every or len(every) < len(reports) or len({(report.known, report.calls) for report in every}) > 1:
        return None
    return every[0]._replace(
        gave_up=any(report.gave_up for report in every),
        seconds=max(report.seconds for report in every),
        stall_seconds=max(report.stall_seconds for report in every),
        returns=_returns([report.returns for report in every]),
        link=(_slowest(report.link[0] for report in every), _slowest(report.link[1] for report in every)),
        limits=Limits(min(report.limits.device_bytes for report in every),
                      min(report.limits.host_bytes for report in every), every[0].limits.addresses),
        costs=_costs([report.costs for report in every]))


def _slowest(each: Iterable[float | None]) -> float | None:
    return max((seconds for seconds in each if seconds is not None), default=None)


def _costs(each: Sequence[Costs]) -> Costs:
    """Return the costs of copies on the slowest link."""
    return replace(each[0], out_seconds_per_byte=max(costs.out_seconds_per_byte for costs in each),
                   in_seconds_per_byte=max(costs.in_seconds_per_byte for costs in each),
                   latency_seconds=max(costs.latency_seconds for costs in each),
                   contention=max(costs.contention for costs in each),
                   move_seconds_per_byte=max(costs.move_seconds_per_byte for costs in each))


def _returns(each: Sequence[Returns]) -> Returns:
    """Return for each way back of a tensor the seconds on the slowest rank."""
    return Returns(_longest([returns.late for returns in each]), _longest([returns.paged_in for returns in each]),
                   _longest([returns.recomputed for returns in each]), max(returns.paged_in_bytes for returns in each))


def _longest(each: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for seconds in each:
        for key, value in seconds.items():
            found[key] = max(value, found.get(key, value))
    return found


def slowest(trace: Trace, durations: Sequence[Sequence[float]]) -> Trace:
    """Return a trace whose calls take as long as on the slowest rank.
    durations: of each rank, the seconds of all calls. Other algorithms of a call take longer in proportion."""
    if len(durations) <= 1:
        return trace
    calls = []
    for call, each in zip(trace.calls, zip(*durations, strict=True), strict=True):
        factor = max(each) / call.seconds if call.seconds else 1.0
        calls.append(replace(call, seconds=max(each), algorithms=scaled(call.algorithms, factor)))
    return replace(trace, calls=tuple(calls))
