"""Parameters and optimizer state in plans: GPT-2 with AdamW, 16 bytes a parameter, beside what the link allows.

    python -m bench.lasting > bench/results/lasting.md

What the link allows is the bound of ``minidl.planning.bound`` for the same trace and budget. Slid is what was moved
from one place on the device to another in the last step.
"""

import argparse
from time import perf_counter

from minidl import OutOfMemory, Runtime
from minidl.lab.training_step import training_step
from minidl.outside.units import UNLIMITED, format_bytes, parse_bytes
from minidl.planning.bound import bound

CASES = [("sim:p100", "gpt2-xl", 1, "16GiB"), ("sim:h100", "gpt2-xl", 1, "79GiB"),
         ("sim:p100", "gpt2-large", 1, "8GiB"), ("sim:p100", "gpt2", 1, "2GiB")]
STEPS = {"passive": 4, "dtr-swap": 4, "auto": 48}
INSTANTS = 24


def row(device: str, name: str, batch: int, budget: str) -> str:
    """Run one case; return its line of the table."""
    with Runtime(device, policy="none", memory_budget=UNLIMITED) as runtime:
        step = training_step(name, batch)
        for _ in range(2):
            runtime.memory.arena.reset_peak()
            before = runtime.stats()
            with runtime.iteration():
                step()
                trace = runtime.trace()
        free, costs = runtime.stats().since(before), runtime.device.profile.link_costs
    began = perf_counter()
    least = bound(trace, costs, parse_bytes(budget), instants=INSTANTS)
    took = perf_counter() - began
    cells = []
    for policy, steps in STEPS.items():
        try:
            with Runtime(device, policy=policy, memory_budget=budget) as runtime:
                step = training_step(name, batch)
                for _ in range(steps):
                    before = runtime.stats()
                    with runtime.iteration():
                        step()
                now = runtime.stats().since(before)
                plan = runtime.plan
            cells.append(f"{now.seconds:.3f} ({100 * least.seconds / now.seconds:.0f}%)")
        except OutOfMemory:
            cells.append("does not fit")
    predicted = f"{plan.predicted_seconds:.3f}" if plan is not None and plan.predicted_seconds else "-"
    return (f"| {device} | {name} | {format_bytes(free.peak_bytes)} | {budget} | {free.seconds:.3f} "
            f"| {least.seconds:.3f} | {' | '.join(cells)} | {predicted} "
            f"| {format_bytes(now.moved_bytes)} | {took:.0f} s |")


def main() -> None:
    """Run all cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=len(CASES), help="so many of the cases")
    rows = parser.parse_args().rows
    print("# Parameters and optimizer state\n\nMade by `python -m bench.lasting`: seconds of a step of GPT-2 with "
          "AdamW (16 bytes a parameter), 1,024 tokens a sequence; in\nbrackets the share of the speed that the link "
          "allows (the bound). Slid: what `auto` moves on the device in a step.\n")
    print("| device | model | unmanaged peak | budget | unmanaged | bound | " + " | ".join(STEPS)
          + " | predicted | slid | bound solved in |")
    print("|---|---|--:|--:|--:|--:|" + "--:|" * (len(STEPS) + 3))
    for case in CASES[:rows]:
        print(row(*case), flush=True)


if __name__ == "__main__":
    main()
