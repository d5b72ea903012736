"""Searches for the largest batch that trains in a budget, whole or in slices, and says why no larger one does.

Every answer was tried in a dry run (``fit``). The search starts from the bytes that an unmanaged step needs, which grow
almost linearly with the batch. Without slices, the next larger batch was tried and failed. With slices, the answer may
be too small by a 32nd, because these trials take more calls. A search may have a limit of work (``trials.Work``); the
answer then names the smallest batch that was not tried.
"""

from dataclasses import dataclass, replace
from functools import partial

from minidl import policies
from minidl.cli.app.bisection import largest_number
from minidl.cli.app.fit import Setup
from minidl.cli.app.slices import choose_slices, in_slices, most_slices
from minidl.cli.app.speeds import FEW, MORE, on_line
from minidl.cli.app.trials import Shortage
from minidl.errors import ShapeError
from minidl.memory.ledger import Demand
from minidl.outside.units import format_bytes
from minidl.policies.literature.static import Static

FEW_SLICES = 8  # which tell what a step keeps in slices
PARTS = 32  # of a batch in slices: to one of these it is found
WORK = 150_000  # of twins in a search: less than a minute of one core
REPLAYS = 8  # a step may launch so many times its calls; it would be slower than an eighth of the unmanaged speed
GAIN = 0.9  # of the bytes, and no more, twice the slices must need, to be tried


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that fits (0: none does), its number of slices, and ``limit``:
    why the next one does not fit, as text. ``whole``: the largest batch that fits without slices. ``untried``: the
    smallest batch that was not tried because the limit of work was reached, so a larger one than the answer may fit;
    0: all were tried."""

    batch: int
    limit: str
    slices: int = 1
    whole: int = 0
    untried: int = 0


def largest_batch(setup: Setup, budget_bytes: int, *, most: int = 1 << 30, full_host: bool = False) -> LargestBatch:
    """Return the largest batch, up to ``most``, whose step runs in a budget (bytes), with the setup's number of slices.

    If the policy only swaps, on demand, a batch that runs only because full host memory makes the engine recompute does
    not count, unless ``full_host`` is True. For a policy that plans, or may recompute anyway, every batch counts.
    """
    full_host = full_host or policies.create(setup.policy).plans
    failed: dict[int, Shortage] = {}
    nearly_full, untried, planned = set(), set(), _refuses(setup)

    def fits(batch: int, *, thorough: bool = False) -> bool:
        if setup.work.over:
            untried.add(batch)
            return False
        if batch > most or _refused(setup, batch):
            return batch <= most
        trial = setup.trial(batch, budget_bytes, thorough=thorough, planned=planned)
        if _cut_short(setup, trial.shortage):
            untried.add(batch)
            return False
        if trial.host_nearly_full:
            nearly_full.add(batch)
        if trial.shortage is not None:
            failed[batch] = trial.shortage
        elif not full_host and setup.short_of_host(batch, budget_bytes, trial.recomputed_bytes):
            failed[batch] = Shortage("", host_full=True)
        return batch not in failed

    batch = largest_number(fits, guess=_promising(setup, budget_bytes, most, full_host), most=most)
    if batch and (setup.drifts or batch in nearly_full):  # later iterations may need more
        batch = largest_number(partial(fits, thorough=True), guess=batch, most=batch)
    beyond = min((n for n in untried if n > batch), default=0)
    if beyond and batch + 1 not in failed:
        why = _untried(beyond)
    elif batch < most:
        why = _limit(setup, batch + 1, budget_bytes, failed[batch + 1], full_host)
    else:
        why = f"there is no more than {most}"
    return LargestBatch(batch, why, setup.slices, batch, beyond if batch + 1 not in failed else 0)


def largest_batch_cut(setup: Setup, budget_bytes: int, *, most: int = 1 << 30) -> LargestBatch:
    """Return the largest batch, whole or in slices, up to an error of a 32nd. Whole batches are tried first.
    Larger ones are tried in slices as long as device and host memory together hold all tensors that the backward
    pass needs; beyond that, tensors would be recomputed again and again. For a policy that never swaps, or that refuses
    what its plan does not fit, what they hold tells little: the search goes up from the largest whole batch."""
    whole = largest_batch(setup, budget_bytes, most=most)
    if setup.work.over or whole.batch >= most or not policies.create(setup.policy).moves_tensors:
        return whole
    tried: dict[int, Setup | None] = {}
    failed: dict[int, Shortage] = {}
    nearly_full, untried = set(), set()
    planned = _refuses(setup)
    upwards = planned or not policies.create(setup.policy).regime.swaps
    first = setup.work.limit if upwards else (setup.work.spent + setup.work.limit) / 2  # the rest is for trials

    def cut(batch: int) -> Setup | None:
        if setup.work.spent >= first and batch not in tried:
            untried.add(batch)
            return None
        if batch not in tried:
            chosen = cut_that_holds(setup, batch, budget_bytes)
            if upwards and chosen is not None and chosen.slices == 1:  # whole, it was tried
                chosen = replace(chosen, slices=min(2, batch))
            tried[batch] = chosen
        return tried[batch]

    def fits(batch: int, *, thorough: bool = setup.drifts) -> bool:
        if upwards and batch <= whole.batch:
            return True
        chosen = cut(batch)
        if setup.work.over:
            untried.add(batch)
        if chosen is None or setup.work.over:
            return False
        if chosen.slices not in setup.work.calls:
            chosen.demand(batch)
        trial = chosen.trial(batch, budget_bytes, thorough=thorough, planned=planned)
        if _cut_short(setup, trial.shortage):
            untried.add(batch)
            return False
        if trial.host_nearly_full:
            nearly_full.add(batch)
        if trial.shortage is not None:
            failed[batch] = trial.shortage
        return trial.shortage is None

    least = max(whole.batch, 1)
    if upwards:
        guess, promising = least + least // PARTS + 1, most
    else:  # slices share what the largest operation needs; what a step keeps grows with the batch, however it is cut
        sample = min(2 * least, most)
        few = replace(setup, slices=min(FEW_SLICES, sample))
        held = sample * (budget_bytes + setup.elsewhere) // few.demand(sample).unmanaged_peak_bytes
        guess = min(max(held, least + 1), most_slices(most) * least, most)
        promising = guess = largest_number(lambda n: cut(n) is not None, guess=guess, most=most, parts=PARTS)
    found = largest_number(fits, guess=guess, most=promising, parts=PARTS) if promising > whole.batch else 0
    if found > whole.batch and not setup.drifts and found in nearly_full:  # as for whole batches
        found = largest_number(partial(fits, thorough=True), guess=found, most=found, parts=PARTS)
    if found <= whole.batch:
        beyond = min((n for n in untried if n > whole.batch), default=0)
        return replace(whole, limit=f"{whole.limit}; in slices {_untried(beyond)}", untried=beyond) if beyond else whole
    chosen, beyond = tried[found], min((n for n in (*tried, *untried) if n > found), default=most + 1)
    assert chosen is not None
    if beyond in untried:
        return LargestBatch(found, _untried(beyond), chosen.slices, whole.batch, beyond)
    if beyond > most:
        why = f"there is no more than {most}"
    elif beyond in failed:
        count, shortage = (tried[beyond] or chosen).slices, failed[beyond]
        why = f"at {beyond} in {count} slices " + (
            _stopped(setup, shortage) or f"{shortage.op} finds no room on the device"
            + (", and none on the host" if shortage.host_full else ""))
    else:
        why = _limit_in_slices(setup, found, beyond, budget_bytes)
    return LargestBatch(found, why, chosen.slices, whole.batch)


def cut_that_holds(setup: Setup, batch: int, budget_bytes: int) -> Setup | None:
    """Return the setup with as many slices as let its operations fit the device, and a step's tensors device and host.
    By its demand, from ``choose_slices``' number on, doubled until then; None if more slices would not help. A batch
    that the network refuses for its shape gets one slice."""
    if _refused(setup, batch):
        return replace(setup, slices=1)
    whole = setup.demand(batch)
    chosen = replace(setup, slices=choose_slices(setup, batch, budget_bytes, whole).slices)
    demand = whole if chosen.slices == 1 else chosen.demand(batch)
    while not _holds(chosen, demand, budget_bytes):
        if chosen.slices >= most_slices(batch):
            return None
        chosen, before = replace(chosen, slices=min(2 * chosen.slices, batch)), demand
        demand = chosen.demand(batch)
        if setup.needed_bytes(before) > budget_bytes:
            helps = demand.largest_op_bytes < GAIN * before.largest_op_bytes
        else:
            helps = demand.unmanaged_peak_bytes < GAIN * before.unmanaged_peak_bytes
        if not helps:
            return None
    return chosen


def _holds(setup: Setup, demand: Demand, budget_bytes: int) -> bool:
    return (setup.needed_bytes(demand) <= budget_bytes
            and demand.unmanaged_peak_bytes <= budget_bytes + setup.elsewhere)


def _refuses(setup: Setup) -> bool:
    """Return True if the policy refuses a step that its plan does not fit, and can plan now: on a simulated device."""
    return isinstance(policies.create(setup.policy), Static) and setup.device.simulated_twin() is not None


def _cut_short(setup: Setup, shortage: Shortage | None) -> bool:
    """Return True if a trial ended because the search reached its limit, so that it says nothing about its batch."""
    return shortage is not None and shortage.slow and setup.work.over


def _untried(batch: int) -> str:
    return f"{batch} and more were not tried, because the search has a limit; --thorough goes on"


def _stopped(setup: Setup, shortage: Shortage) -> str:
    """Return why a trial ended for another reason than memory, as text; "" if memory was the reason."""
    return (f"a step replays so much that it launches more than {setup.work.replays:g} times its calls; "
            "--thorough goes on" if shortage.slow else shortage.refused)


def _limit(setup: Setup, batch: int, budget_bytes: int, shortage: Shortage, full_host: bool) -> str:
    """Return the reason why a batch does not fit, as text with numbers."""
    cut = in_slices(setup.slices)
    if stopped := _stopped(setup, shortage):
        return f"at {batch}{cut} {stopped}"
    if shortage.host_full and setup.work.over:
        return f"a batch of {batch} needs more than the {format_bytes(setup.elsewhere)} of host memory"
    if shortage.host_full:
        roomy = replace(setup, host_memory=2 * setup.host_memory)
        would = partial(_runs, roomy, budget_bytes, full_host)
        guess = _promising(roomy, budget_bytes, 1 << 30, False)
        return (f"a batch of {batch} needs more than the {format_bytes(setup.elsewhere)} of host memory"
                + _with_more(setup, largest_number(would, guess=guess, most=guess, parts=PARTS), batch))
    demand = setup.demand(batch)
    if not policies.create(setup.policy).moves_tensors:
        return (f"at {batch} a step needs {format_bytes(demand.unmanaged_peak_bytes)} of the "
                f"{format_bytes(budget_bytes)}{cut}, and policy {setup.policy!r} evicts nothing")
    if setup.needed_bytes(demand) <= budget_bytes:
        return (f"at {batch} {shortage.op} finds no room in the {format_bytes(budget_bytes)}{cut}, though no "
                f"operation needs more than {format_bytes(demand.largest_op_bytes)}")
    return (f"at {batch} {demand.largest_op} alone needs {format_bytes(demand.largest_op_bytes)} of the "
            f"{format_bytes(budget_bytes)}{cut}")


def _limit_in_slices(setup: Setup, found: int, batch: int, budget_bytes: int) -> str:
    """Return the reason, as text, why a batch fits with no number of slices:
    one operation is too large for the device, or all tensors that the backward pass needs are too large for device
    and host together."""
    most = replace(setup, slices=most_slices(batch))
    demand = most.demand(batch)
    if most.needed_bytes(demand) > budget_bytes:
        return _limit(most, batch, budget_bytes, Shortage(demand.largest_op, host_full=False), True)
    roomy = replace(setup, host_memory=2 * setup.host_memory)
    larger = largest_number(lambda n: cut_that_holds(roomy, n, budget_bytes) is not None, guess=2 * found,
                            most=1 << 30, parts=PARTS)
    return (f"a step of {batch} keeps {format_bytes(demand.unmanaged_peak_bytes)}, and the device has "
            f"{format_bytes(budget_bytes)}, the host {format_bytes(setup.elsewhere)}"
            + _with_more(setup, larger, batch))


def _with_more(setup: Setup, larger: int, batch: int) -> str:
    """Return a sentence with the batch that would fit if host memory were twice as large."""
    return f"; with {format_bytes(setup.host_memory)} more of it {larger} would do" if larger >= batch else ""


def _runs(setup: Setup, budget_bytes: int, full_host: bool, batch: int) -> bool:
    """Return True if a trial of this batch runs.
    full_host: also count a trial in which a policy that only swaps recomputed tensors because host memory was full."""
    trial = setup.trial(batch, budget_bytes)
    return trial.shortage is None and (
        full_host or not setup.short_of_host(batch, budget_bytes, trial.recomputed_bytes))


def _promising(setup: Setup, budget_bytes: int, most: int, full_host: bool) -> int:
    """Estimate the largest batch that fits from its demand: its largest operation must fit the device.
    If the policy only swaps, all its tensors must fit device and host memory, too, unless ``full_host``."""
    policy = policies.create(setup.policy)
    swaps = policy.moves_tensors and not policy.weighs_recomputation and not full_host

    def may_fit(batch: int) -> bool:
        if batch > most or _refused(setup, batch):
            return batch <= most
        demand = setup.demand(batch)
        return setup.needed_bytes(demand) <= budget_bytes and (
            not swaps or demand.unmanaged_peak_bytes <= budget_bytes + setup.elsewhere)

    few, more = setup.demand(FEW), setup.demand(MORE)
    held = budget_bytes + (setup.elsewhere if swaps else 0)
    guess = on_line(few.unmanaged_peak_bytes, more.unmanaged_peak_bytes, held)
    if policy.moves_tensors:  # one operation at a time is on the device
        needed = on_line(setup.needed_bytes(few), setup.needed_bytes(more), budget_bytes)
        guess = min(guess, needed) if swaps else needed
    return largest_number(may_fit, guess=min(most, max(1, guess)), most=most)


def _refused(setup: Setup, batch: int) -> bool:
    """Return True if the network refuses so small a batch for its shape, not for memory."""
    if batch >= FEW:
        return False
    try:
        setup.demand(batch)
    except ShapeError:
        return True
    return False
