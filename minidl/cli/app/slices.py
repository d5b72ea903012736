"""Chooses the number of slices of a batch, and the size of parameter shards, when flags leave them open.
Both follow from dry runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minidl import policies
from minidl.cli.app.fit import Setup
from minidl.cli.app.trials import Work
from minidl.memory.ledger import Demand
from minidl.outside.units import format_bytes

LARGE = 0.5  # of the budget, for one operation: from here on hardly anything can be in flight beside it
SMALL = 0.25  # and up to here enough can
MOST = 64
COMPARING = 60_000  # of the work of twins, two first plans included: half a minute of one core
SHARD = 0.125  # of the budget: an update takes a shard, its gradient and some states at once
LEAST_SHARD = 4 << 20  # bytes: each is some calls more a step


@dataclass(frozen=True, slots=True)
class Cut:
    """The number of slices of a batch, and the reason for this number, as text."""

    slices: int
    why: str


def most_slices(batch: int) -> int:
    """Return the largest number of slices for a batch: each has at least one example."""
    return min(MOST, batch)


def in_slices(count: int) -> str:
    """Return the text " in N slices" for messages; "" for a batch in one piece."""
    return f" in {count} slices" if count > 1 else ""


def choose_slices(setup: Setup, batch: int, budget_bytes: int, demand: Demand) -> Cut:
    """Return the fewest slices with which no operation takes more than a quarter of the budget, if any number does.
    The number is a power of two up to 64, or one for each example.
    A batch stays whole if no operation takes more than half of the budget on a simulated device, or more than all of it
    on a device with values: the number of slices decides the bits of a result, so a batch that fits must have the same
    bits in every budget.

    demand: the bytes of the whole batch's step.
    """
    budget = budget_bytes - setup.device.reserved_bytes
    enough = 1.0 if setup.device.has_values else LARGE
    if demand.unmanaged_peak_bytes <= budget or demand.largest_op_bytes <= enough * budget:
        return Cut(1, "no operation is large")
    # Slices share what the operation needs, so fewer than this cannot do.
    count, enough_slices = 1, demand.largest_op_bytes / (SMALL * budget)
    while count < most_slices(batch):
        count = min(2 * count, batch)
        if count >= enough_slices and replace(setup, slices=count).demand(batch).largest_op_bytes <= SMALL * budget:
            break
    return Cut(count, f"{demand.largest_op} alone takes {format_bytes(demand.largest_op_bytes)} of "
                      f"{format_bytes(budget)}")


def faster(setup: Setup, cut: Cut, batch: int, budget_bytes: int) -> Cut:
    """Return ``cut``, or one with twice as many slices if a step is faster under its first plan.
    Smaller tensors find an address more easily, and more of their copies can run beside computation. Both are tried
    in dry runs, if the device is simulated and the policy makes plans, and with limited work: on the way to its first
    plan a step in many slices may replay for minutes."""
    more = min(2 * cut.slices, most_slices(batch))
    if more <= cut.slices or cut.slices == 1:
        return cut
    work = Work(COMPARING, within=True)
    work.calls.update(setup.work.calls)
    finer, coarser = (replace(setup, slices=n, work=work) for n in (more, cut.slices))
    finer.demand(batch)  # from then on, replays are told from a step's own calls
    seconds, fewer = (each.planned_seconds(batch, budget_bytes) for each in (finer, coarser))
    if work.over or seconds is None or fewer is None or seconds >= fewer:
        return cut
    gain = f"a step takes {seconds:.3g} s instead of {fewer:.3g} in {cut.slices}"
    return Cut(more, f"{cut.why}; {gain}")


def choose_shards(setup: Setup, batch: int, budget_bytes: int) -> int | None:
    """Return the size of parameter shards in bytes; larger parameters are cut. None: no parameter is cut.
    Return None if the batch runs with whole parameters, in slices or not, since shards change the bits of results."""
    shard_bytes = max(int(SHARD * budget_bytes), LEAST_SHARD)
    if not policies.create(setup.policy).moves_tensors or setup.largest_parameter() <= shard_bytes:
        return None
    for slices in dict.fromkeys((setup.slices, max(setup.slices, most_slices(batch)))):
        if replace(setup, slices=slices).trial(batch, budget_bytes).shortage is None:
            return None
    return shard_bytes
