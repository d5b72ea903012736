"""Settles the batch and the budget of a run before its first step, with dry runs: ``--batch max``, percentages, errors.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import inf

from minidl import policies
from minidl.cli.app.build import build
from minidl.cli.app.default_memory import default_memory
from minidl.cli.app.fit import MOST_ITERATIONS, Setup, TrainingParts, smallest_budget
from minidl.cli.app.inputs import made_ahead
from minidl.cli.app.kinds import CHOSEN, Share
from minidl.cli.app.largest import REPLAYS, WORK, cut_that_holds, largest_batch, largest_batch_cut
from minidl.cli.app.options import SYNTHETIC_STEPS, Options
from minidl.cli.app.slices import Cut, choose_shards, choose_slices, faster, in_slices, most_slices
from minidl.cli.app.speeds import speeds
from minidl.cli.app.trials import Work
from minidl.data import Data
from minidl.device import Device
from minidl.device.spill import Spill
from minidl.errors import UserError
from minidl.memory.ledger import Demand
from minidl.meta import ALIGNMENT
from minidl.outside.units import format_bytes
from minidl.ranks import Ranks, modelled

ENDLESS = 1 << 30  # examples, of data that has no end
FASTER = 0.85  # of the seconds without them, at most, updates on the host must promise, to be chosen
LEAST = 2  # examples in a batch that tells what parameters need: batch norm cannot do with one


@dataclass(frozen=True, slots=True)
class Sizes:
    """A batch, and a budget of device memory in which its step fits.

    demand  the bytes that an unmanaged step of this batch needs
    most    the largest batch that makes sense: the number of training examples
    cut     the number of slices of the batch
    setup   the settings of the dry runs, with these slices and the size of parameter shards
    """

    batch: int
    budget_bytes: int
    demand: Demand
    most: int
    cut: Cut
    setup: Setup


def setup_of(options: Options, device: Device, data: Data, ranks: Ranks | None = None) -> Setup:
    """Return the settings of the dry runs for this command line:
    they run the training step and, if the run will have one, the evaluation on test data."""
    parts = options.accumulate
    host = options.host_memory if options.host_memory is not None else default_memory(device)[1]

    spill = Spill(options.spill, options.spill_bytes) if options.spill and options.spill_bytes else None

    def program(batch: int) -> TrainingParts:
        trainer = build(options, data)
        looks = partial(trainer.predict, data.shapes(batch)) if device.has_values and data.real else None
        return TrainingParts(partial(trainer.step, data.shapes(batch * parts)), looks)

    def ahead(batch: int) -> int:
        return made_ahead(data, batch * parts, host) * data.shapes(batch * parts).nbytes

    steps = options.steps or (MOST_ITERATIONS if data.train_size else SYNTHETIC_STEPS)
    return Setup(program, device, options.policy, host, options.precision, options.seed,
                 options.placement, ahead, options.switches, max(options.slices, 1), steps, spill,
                 options.shard_bytes or None, options.host_update == "always",
                 modelled(ranks.count, divide=ranks.divide) if ranks is not None else None)


def settle(options: Options, setup: Setup, data: Data) -> Sizes:
    """Return the batch, budget, slices and shards that the flags ask for, or that searches choose (max, auto).

    A percentage is of the unmanaged peak. Raises UserError, with sizes that fit, if a dry run with these does not.
    """
    most = (data.train_size or ENDLESS) // options.accumulate
    budget = _budget(options, setup)
    if options.shard_bytes == CHOSEN:
        setup = replace(setup, shard_bytes=choose_shards(setup, options.batch or LEAST, budget))
    chosen = options.slices == CHOSEN and setup.ranks is None  # ranks have a slice each unless more are asked for
    batch, cut = _batch(options, setup, budget, most, chosen=chosen)
    whole = replace(setup, slices=1).demand(batch, timed=True)
    if cut is None:
        cut = (faster(setup, choose_slices(setup, batch, budget, whole), batch, budget) if chosen
               else Cut(setup.slices, "as asked for"))
    cut = _cut_that_fits(replace(setup, slices=cut.slices), cut, batch, budget, most, chosen=chosen)
    setup = replace(setup, slices=cut.slices)
    if options.host_update == "auto":
        setup = replace(setup, host_update=_pays_on_host(setup, batch, budget, whole))
    demand = whole
    if cut.slices > 1:
        demand = replace(setup.demand(batch, timed=True), unmanaged_peak_bytes=whole.unmanaged_peak_bytes)
    return Sizes(batch, budget, demand, most, cut, setup)


def _pays_on_host(setup: Setup, batch: int, budget: int, whole: Demand) -> bool:
    """Return True if the optimizer's states and updates on the host are predicted to save over 15% of a planned step.
    False if nothing has to leave the device, or if the device is not simulated."""
    if whole.unmanaged_peak_bytes <= budget - setup.device.reserved_bytes:
        return False
    seconds = [replace(setup, host_update=on_host).managed_seconds(batch, budget) for on_host in (False, True)]
    return seconds[0] is not None and seconds[1] is not None and seconds[1] < FASTER * seconds[0]


def _budget(options: Options, setup: Setup) -> int:
    """Return the budget in bytes, a multiple of 256; a percentage is of the unmanaged peak. Raises UserError for 0."""
    budget = options.memory_budget
    if budget is None:
        budget, _ = default_memory(setup.device)
    elif isinstance(budget, Share):
        assert options.batch is not None  # the command line is checked
        budget = int(setup.demand(options.batch).unmanaged_peak_bytes * budget.of_peak)
    budget = budget // ALIGNMENT * ALIGNMENT
    if budget == 0:
        raise UserError(f"--memory-budget must be at least {ALIGNMENT} bytes")
    return budget


def _batch(options: Options, setup: Setup, budget: int, most: int, *, chosen: bool) -> tuple[int, Cut | None]:
    """Return (batch, its slices if the search has tried some).
    If no batch is given, searches for the largest and prints it. chosen: True if the program may choose the slices.
    Raises UserError if no batch fits."""
    batch, cut = options.batch, None
    if batch is None:
        search = largest_batch_cut if chosen else largest_batch
        setup = replace(setup, work=Work() if options.thorough else Work(WORK, REPLAYS))
        found = search(setup, budget, most=most)
        if not found.batch:
            raise UserError(f"not even a batch of 1 fits {format_bytes(budget)}: {found.limit}")
        print(f"the largest batch is {found.batch}{in_slices(found.slices)}: {found.limit}", flush=True)
        setup.work.limit = inf if options.thorough else setup.work.spent + WORK / 2
        costs = [f"{each:,} at {share:.0%}" for each, share in speeds(setup, found.whole, budget)]
        if costs:
            print(f"of the unmanaged speed: {', '.join(costs)}", flush=True)
        batch = found.batch
        if found.slices > setup.slices:
            cut = Cut(found.slices, f"whole {found.whole} is the largest")
    if batch > most:
        raise UserError(f"--batch {batch}: there are only {most} images to train on")
    return batch, cut


def _cut_that_fits(setup: Setup, cut: Cut, batch: int, budget: int, most: int, *, chosen: bool) -> Cut:
    """Return a number of slices with which a batch fits: ``cut``'s or, if ``chosen``, another one.
    Raises UserError with the largest operation, the smallest budget and the largest batch that would fit."""
    shortage = setup.trial(batch, budget).shortage
    if shortage is None:
        return cut
    setup = replace(setup, work=Work(WORK, REPLAYS))
    if chosen:
        open_setup = replace(setup, slices=1)
        cuts = [replace(setup, slices=n) for n in dict.fromkeys((1, cut.slices, most_slices(batch)))]
        setup = min(cuts, key=lambda one: one.needed_bytes(one.demand(batch)))
    if chosen and policies.create(setup.policy).moves_tensors:
        for other in (open_setup, cut_that_holds(open_setup, batch, budget)):
            if other is not None and other.slices != cut.slices and other.trial(batch, budget).shortage is None:
                return Cut(other.slices, f"{shortage.op} finds no room in {cut.slices}")
        largest = largest_batch_cut(open_setup, budget, most=most).batch
    else:
        largest = largest_batch(setup, budget, most=most, full_host=True).batch
    demand, least = setup.demand(batch), smallest_budget(setup, batch)
    host = f" and {format_bytes(setup.elsewhere)} of host memory" if shortage.host_full else ""
    batches = (f"the largest batch that would do in this budget is {largest}" if largest else
               "no batch would do in this one")
    raise UserError(
        f"batch {batch} does not fit {format_bytes(budget)}{host} under policy "
        f"{setup.policy}{in_slices(setup.slices)}. The operation with the largest working set, {demand.largest_op}, "
        f"needs {demand.largest_op_bytes} bytes "
        f"({format_bytes(demand.largest_op_bytes)}); the smallest budget that would do is {least} bytes "
        f"({format_bytes(least)}); {batches}")
