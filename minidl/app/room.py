"""What of ``--batch`` and ``--memory-budget`` is settled by what fits, before the first step. Knows no model."""

from minidl.app.fit import Setup, default_memory, largest_batch, smallest_budget
from minidl.app.flags import Options, Share
from minidl.errors import UserError
from minidl.memory.ledger import Demand
from minidl.meta import ALIGNMENT
from minidl.units import format_bytes


def settle(options: Options, setup: Setup, most: int) -> tuple[int, int]:
    """(batch, budget in bytes) out of what may be ``max`` and a percentage. Raises UserError."""
    budget, batch = options.memory_budget, options.batch
    if budget is None:
        budget, _ = default_memory(setup.device)
    elif isinstance(budget, Share):
        assert batch is not None  # the command line is checked
        budget = int(setup.demand(batch).unmanaged_peak_bytes * budget.of_peak)
    budget = budget // ALIGNMENT * ALIGNMENT
    if budget == 0:
        raise UserError(f"--memory-budget must be at least {ALIGNMENT} bytes")
    if batch is None:
        found = largest_batch(setup, budget, most=most)
        if not found.batch:
            raise UserError(f"not even a batch of 1 fits {format_bytes(budget)}: {found.limit}")
        print(f"the largest batch is {found.batch}: {found.limit}", flush=True)
        batch = found.batch
    if batch > most:
        raise UserError(f"--batch {batch}: there are only {most} images to train on")
    return batch, budget


def require_that_it_fits(setup: Setup, batch: int, budget: int, demand: Demand, most: int) -> None:
    """Raises UserError with the largest operation, the smallest budget and the largest batch that would do."""
    shortage = setup.trial(batch, budget).shortage
    if shortage is None:
        return
    least = smallest_budget(setup, batch)
    found = largest_batch(setup, budget, most=most, full_host=True).batch
    host = f" and {format_bytes(setup.host_memory)} of host memory" if shortage.host_full else ""
    batches = f"the largest batch that would do in this budget is {found}" if found else "no batch would do in this one"
    raise UserError(
        f"batch {batch} does not fit {format_bytes(budget)}{host} under policy {setup.policy}. The operation with the "
        f"largest working set, {demand.largest_op}, needs {demand.largest_op_bytes} bytes "
        f"({format_bytes(demand.largest_op_bytes)}); the smallest budget that would do is {least} bytes "
        f"({format_bytes(least)}); {batches}")
