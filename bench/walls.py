"""`auto` where memory is far too small: the cases that its plans are judged by, whole and in slices.

    python -m bench.walls [--cases 0,1,...] [--steps 60] > bench/results/walls.md

A share is the speed of the last step, when plans have settled, over that of the same batch, whole, with unlimited
memory. The bound is what no plan for the whole batch exceeds (``minidl.planning.bound``). Waits, replays and what is
slid from one place on the device to another are those of the last step.
"""

import argparse
from functools import partial
from typing import NamedTuple

from bench.support.steps import repeated, unmanaged_step
from minidl import OutOfMemory, Runtime
from minidl.lab.training_step import training_step
from minidl.outside.units import parse_bytes
from minidl.planning.bound import bound
from minidl.runtime.stats import Stats


class Case(NamedTuple):
    """A network on a simulated GPU in a budget, into how many slices its batch is cut, and what is wanted."""

    device: str
    model: str
    batch: int
    budget: str | None
    slices: tuple[int, ...]
    wanted: str


CASES = (
    Case("sim:p100", "resnet50", 1014, None, (1, 2), "92% or a proof"),
    Case("sim:p100", "resnet50", 1440, None, (1, 4), "80%"),
    Case("sim:p100", "resnet50", 1840, None, (1, 4), "68%"),
    Case("sim:h200", "resnet50", 1440, "16GiB", (1, 4), "60%"),
    Case("sim:p100", "gpt2-xl", 1, "16GiB", (1,), "90% of the bound"),
    Case("sim:h100", "gpt2-xl", 1, "79GiB", (1,), "nothing slid"),
)
INSTANTS = {"gpt2-xl": 24}  # during which the bound looks at memory, where the usual number takes too long


def managed(case: Case, slices: int, steps: int) -> tuple[Stats, float | None]:
    """Train; return the last step's counters, and the seconds that the plan it followed had predicted.
    Raises OutOfMemory."""
    with Runtime(case.device, policy="auto", memory_budget=case.budget, slices=slices) as runtime:
        last, _ = repeated(runtime, training_step(case.model, case.batch), steps)
        plan = runtime.plan
        return last, plan.predicted_seconds if plan is not None else None


def rows(case: Case, steps: int) -> None:
    """Run one case, and print its lines of the table."""
    free, trace, profile = unmanaged_step(partial(training_step, name=case.model, batch=case.batch), device=case.device)
    budget = parse_bytes(case.budget) if case.budget is not None else profile.memory_bytes
    least = bound(trace, profile.link_costs, budget, **({"instants": INSTANTS[case.model]} if case.model in INSTANTS
                                                        else {})).seconds
    for slices in case.slices:
        head = (f"| {case.device} | {case.model} | {case.batch:,} | {budget / 2**30:.1f} | {slices} | {free:.3f} "
                f"| {least:.3f} ({100 * free / least:.1f}%)")
        try:
            last, predicted = managed(case, slices, steps)
        except OutOfMemory:
            print(f"{head} | does not fit | | | | | | | {case.wanted} |", flush=True)
            continue
        told = f"{predicted:.3f}" if predicted is not None else "-"
        print(f"{head} | {last.seconds:.3f} | {told} | {100 * free / last.seconds:.1f}% "
              f"| {100 * least / last.seconds:.0f}% | {last.stall_seconds:.2f} | {last.recompute_seconds:.2f} "
              f"| {last.moved_bytes / 1e9:.1f} | {case.wanted} |", flush=True)


def main() -> None:
    """Read the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="numbers of the cases, from 0")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    print("# Where memory is far too small\n\nMade by `python -m bench.walls "
          f"--cases {args.cases} --steps {args.steps}`: seconds of a step under `auto` once its plans have settled, "
          "and shares of the\nspeed of the whole batch with unlimited memory, and of that which the bound allows.\n")
    print("| device | model | batch | GiB | slices | unmanaged | bound | observed | predicted | share | of the bound "
          "| waits, s | replays, s | slid, GB | wanted |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for number in args.cases.split(","):
        rows(CASES[int(number)], args.steps)


if __name__ == "__main__":
    main()
