"""Hints for the next run, at most two. Each hint was tried in a dry run before it is printed."""

from dataclasses import replace

from minidl.cli.app.fit import Setup, smallest_budget
from minidl.cli.app.largest import largest_batch
from minidl.outside.units import flag_bytes
from minidl.report.result import Result


def advice(setup: Setup, result: Result, *, most: int) -> list[str]:
    """Return one or two hints for the next run, as text: flags, and the effect that each had in a dry run.
    most: the number of training examples, beyond which a larger batch makes no sense."""
    batch, budget = result.batch, result.budget_bytes
    unmanaged = replace(setup, policy="none")
    if result.swapped_out_bytes or result.swapped_in_bytes or result.recomputed_bytes:
        enough = smallest_budget(unmanaged, batch)
        hints = [f"--memory-budget {flag_bytes(enough)}: in that nothing has to be moved"]
        free = largest_batch(replace(unmanaged, slices=1), budget, most=batch).batch
        if free and (setup.slices == 1 or unmanaged.trial(free, budget).shortage is None):
            hints.insert(0, f"--batch {free}: the largest for which nothing has to be moved in this budget")
        return hints
    if 2 * batch <= most:
        for policy in dict.fromkeys((setup.policy, "passive")):
            if replace(setup, policy=policy).trial(2 * batch, budget).shortage is None:
                flag = "" if policy == setup.policy else f" --policy {policy}"
                if setup.slices > 1:
                    return [f"--batch {2 * batch} --slices {setup.slices}{flag} fits this budget too"]
                return [f"--batch {2 * batch}{flag} fits this budget too; --batch max{flag} finds the largest"]
    least = smallest_budget(replace(setup, policy="passive"), batch)
    return [f"--memory-budget {flag_bytes(least)} --policy passive: that is enough for this batch"]
