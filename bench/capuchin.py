"""Capuchin's planner on sim:p100: the gain of each reading of the paper, and the largest batches.

    python -m bench.capuchin > bench/results/capuchin.md

Shares are of the speed that the same batch has with unlimited memory. Nothing is fused, as in the
TensorFlow of that time. A speed is that of the last step, after feedback has settled.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from bench.support.steps import unmanaged
from minidl import OutOfMemory, Runtime
from minidl.lab.training_step import SEPARATE, training_step
from minidl.memory.switches import Switches
from minidl.plan.policy import Policy
from minidl.policies.capuchin.policy import Capuchin, CapuchinListing
from minidl.policies.capuchin.readings import DEFAULT, PRINTED, Readings

STEPS = 12  # two of them before there is a plan
SPECIMEN = ("resnet50", 1014)
OTHERS = (("resnet50", 760), ("inception_v3", 537), ("vgg16", 274))
BEFORE = replace(DEFAULT, landed=False, per_byte=False, after_call=False)
READINGS: tuple[tuple[str, Readings], ...] = (
    ("**the default**", DEFAULT),
    ("memory is free from the next call on (`landed=False`)", replace(DEFAULT, landed=False)),
    ("swap and recomputation compared by seconds (`per_byte=False`)", replace(DEFAULT, per_byte=False)),
    ("both of these, and `after_call=False`", BEFORE),
    ("a copy out starts with the call of its evicted-access (`after_call=False`)", replace(DEFAULT, after_call=False)),
    ("transfers do not queue (`queueing=False`)", replace(DEFAULT, queueing=False)),
    ("in-triggers before the cost (`triggers_first=True`)", replace(DEFAULT, triggers_first=True)),
    ("mem_saving is one sum (`one_sum=True`)", replace(DEFAULT, one_sum=True)),
    ("a swapped source counts as there (`sources_stay=True`)", replace(DEFAULT, sources_stay=True)),
    ("line 31 as printed (`overwritten=True`)", replace(DEFAULT, overwritten=True)),
    ("Algorithm 1 as printed (`listing=True`)", replace(DEFAULT, listing=True)),
    ("all of these as printed (`PRINTED`)", PRINTED),
)
REACH = (  # model; 20% above the paper's largest unmanaged batch, 75% of Capuchin's largest one, and that
    ("vgg16", 274, 262, 350), ("resnet50", 228, 760, 1014), ("resnet152", 103, 598, 798),
    ("inception_v3", 192, 537, 716), ("inception_v4", 106, 351, 468),
)


class Steps:
    """Training steps of one case: their seconds and stalls, and what the first plan predicted."""

    def __init__(self, model: str, batch: int, policy: Policy | str, steps: int = STEPS,
                 switches: Switches = SEPARATE) -> None:
        self.seconds: list[float] = []
        self.stalls: list[float] = []
        with Runtime(device="sim:p100", policy=policy, switches=switches) as runtime:
            step = training_step(model, batch)
            before = runtime.stats()
            for _ in range(steps):
                with runtime.iteration():
                    step()
                now = runtime.stats()
                since, before = now.since(before), now
                self.seconds.append(since.seconds)
                self.stalls.append(since.stall_seconds)
            self.predicted = runtime.plan.predicted_seconds if runtime.plan is not None else None


def readings_table() -> None:
    """Print a table with a row for each reading of the paper: the specimen's seconds, and shares in the other cases."""
    limits = {case: unmanaged(*case, switches=SEPARATE).last.seconds for case in (SPECIMEN, *OTHERS)}
    print("| reading | " + " at ".join(map(str, SPECIMEN)) + ": predicted s | observed s | stalls s | share | "
          + " | ".join(f"{model} at {batch}" for model, batch in OTHERS) + " |")
    print("|---|" + "--:|" * (4 + len(OTHERS)))
    rows: list[tuple[str, Policy]] = [(name, Capuchin(readings=readings)) for name, readings in READINGS]
    for name, policy in [*rows, ("`capuchin-listing`", CapuchinListing())]:
        ran = Steps(*SPECIMEN, policy)
        predicted = f"{ran.predicted:.2f}" if ran.predicted is not None else "-"
        cells = [predicted, f"{ran.seconds[-1]:.2f}", f"{ran.stalls[-1]:.2f}",
                 f"{100 * limits[SPECIMEN] / ran.seconds[-1]:.1f}%"]
        cells += [f"{100 * limits[case] / Steps(*case, policy).seconds[-1]:.1f}%" for case in OTHERS]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print()


def reach_table(policies: tuple[str, ...]) -> None:
    """Print the shares of `capuchin` at three batches a model, with its first plan and with feedback; and of others."""
    names = " | ".join(f"`{policy}`" for policy in policies)
    print(f"| model | batch | without feedback | with it | gain | {names} | paper |")
    print("|---|--:|--:|--:|--:|" + "--:|" * (len(policies) + 1))
    for model, *batches in REACH:
        for batch, paper in zip(batches, ("97%", "at least 74%", "runs"), strict=True):
            limit = unmanaged(model, batch, switches=SEPARATE).last.seconds
            first = Steps(model, batch, "capuchin", 4, switches=replace(SEPARATE, feedback=False)).seconds[-1]
            last = Steps(model, batch, "capuchin").seconds[-1]
            cells = [f"{100 * limit / first:.1f}%", f"{100 * limit / last:.1f}%", f"{100 * (first / last - 1):+.1f}%"]
            for policy in policies:
                try:
                    cells.append(f"{100 * limit / Steps(model, batch, policy, 3).seconds[-1]:.1f}%")
                except OutOfMemory:
                    cells.append("does not fit")
            print(f"| {model} | {batch} | " + " | ".join(cells) + f" | {paper} |", flush=True)
    print()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("# Capuchin's planner\n\nMade by `python -m bench.capuchin`. sim:p100, 14.8 GiB, nothing fused; shares are "
          "of the speed with unlimited memory.\n\n## What each reading of the paper is worth\n")
    readings_table()
    print("## How far it reaches\n")
    reach_table(("capuchin-listing",))


if __name__ == "__main__":
    main()
