"""Hints for the next run, at most two. Each hint was tried in a dry run before it is printed.

The dry runs have a limit of work, so that they take a few seconds. What was not found within it is not advised.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from minidl.cli.app.fit import Setup, smallest_budget
from minidl.cli.app.largest import REPLAYS, largest_batch
from minidl.cli.app.trials import OutOfWork, Work
from minidl.outside.units import flag_bytes
from minidl.report.result import Result

WORK = 60_000  # of twins: a few seconds of one core


def advice(setup: Setup, result: Result, *, most: int) -> list[str]:
    """Return up to two hints for the next run, as text: flags, and the effect that each had in a dry run.
    most: the number of training examples, beyond which a larger batch makes no sense."""
    setup = replace(setup, work=Work(WORK, REPLAYS, within=True))
    moved = result.swapped_out_bytes or result.swapped_in_bytes or result.recomputed_bytes
    hints: list[str] = []
    with suppress(OutOfWork):  # the hints before it have been tried
        hints.extend(_to_move_nothing(setup, result) if moved else _to_use_more(setup, result, most))
    return hints[::-1]


def _to_move_nothing(setup: Setup, result: Result) -> Iterator[str]:
    """Yield the smallest budget for which nothing has to be moved, and the largest batch: the longest search last."""
    batch, budget = result.batch, result.budget_bytes
    unmanaged = replace(setup, policy="none")
    parts = f" in {setup.slices} slices" if setup.slices > 1 else ""  # whole the step needs more
    yield f"--memory-budget {flag_bytes(smallest_budget(unmanaged, batch))}: in that nothing has to be moved{parts}"
    found = largest_batch(replace(unmanaged, slices=1), budget, most=batch)
    if found.batch and (setup.slices == 1 or unmanaged.trial(found.batch, budget).shortage is None):
        what = "for it" if found.untried else "the largest for which"
        yield f"--batch {found.batch}: {what} nothing has to be moved in this budget"


def _to_use_more(setup: Setup, result: Result, most: int) -> Iterator[str]:
    """Yield twice the batch if it fits; else the smallest budget in which this batch fits under policy passive."""
    batch, budget = result.batch, result.budget_bytes
    if 2 * batch <= most:
        setup.demand(2 * batch)  # tells the limit how many calls a step has
        for policy in dict.fromkeys((setup.policy, "passive")):
            if replace(setup, policy=policy).trial(2 * batch, budget).shortage is None:
                flag = "" if policy == setup.policy else f" --policy {policy}"
                if setup.slices > 1:
                    yield f"--batch {2 * batch} --slices {setup.slices}{flag} fits this budget too"
                else:
                    yield f"--batch {2 * batch}{flag} fits this budget too; --batch max{flag} finds the largest"
                return
    least = smallest_budget(replace(setup, policy="passive"), batch)
    yield f"--memory-budget {flag_bytes(least)} --policy passive: that is enough for this batch"
