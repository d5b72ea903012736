"""Slices on sim:p100: batches near the wall and beyond it, in so many slices, beside the unmanaged speed.

    python -m bench.slices [--cases resnet50:1440,...] [--slices 1,2,4,8] [--steps 40] [--instants 20]
                           > bench/results/slices.md

A share is the speed of the fastest step over that of the same batch, whole, with unlimited memory. Beside it what
cutting costs where all fits, the bytes of the largest operation, and, with ``--instants``, the share that no plan for
these slices exceeds (``minidl.planning.bound``, which looks at memory during so many calls). Copies, replays and waits
are the last step's.
"""

import argparse
from functools import partial

from bench.support.steps import Unmanaged, repeated, unmanaged_step
from minidl import OutOfMemory, Runtime
from minidl.lab.training_step import training_step
from minidl.outside.units import UNLIMITED, format_bytes
from minidl.planning.bound import bound
from minidl.runtime.stats import Stats

CASES = "resnet50:1440,resnet50:1840,resnet50:2300,vgg16:525,resnet50:4600"
DEVICE = "sim:p100"


def whole_or_cut(name: str, batch: int, slices: int) -> Unmanaged:
    """Measure a step with unlimited memory, with its batch cut into this many slices."""
    return unmanaged_step(partial(training_step, name=name, batch=batch), device=DEVICE, slices=slices)


def fastest(name: str, batch: int, slices: int, policy: str, steps: int) -> tuple[Stats, float]:
    """Train ``steps`` steps; return the last one's counters and the fastest one's seconds. Raises OutOfMemory."""
    with Runtime(DEVICE, policy=policy, slices=slices) as runtime:
        return repeated(runtime, training_step(name, batch), steps)


def row(name: str, batch: int, slices: int, policy: str, steps: int, whole: float, instants: int) -> str:
    """One batch in so many slices; ``whole``: seconds of its step in one piece with unlimited memory."""
    with Runtime(DEVICE, memory_budget=UNLIMITED, policy="none", slices=slices) as runtime:
        needed = format_bytes(runtime.dry_run(training_step(name, batch)).largest_op_bytes)
    free, trace, profile = whole_or_cut(name, batch, slices)
    least = bound(trace, profile.link_costs, profile.memory_bytes, instants=instants).seconds if instants else None
    bounded = f"{100 * whole / least:.1f}%" if least else ""
    try:
        last, seconds = fastest(name, batch, slices, policy, steps)
        cells = (f"{100 * whole / seconds:.1f}% | {last.swapped_out_bytes / 2**30:.0f} | "
                 f"{last.recompute_seconds:.2f} | {last.stall_seconds:.2f}")
    except OutOfMemory as error:
        cells = f"does not fit{': host memory' if error.host_full else ''} | | | "
    return f"| {name} | {batch:,} | {slices} | {needed} | {100 * whole / free:.1f}% | {bounded} | {cells} |"


def main() -> None:
    """Read the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES, help="model:batch, ...")
    parser.add_argument("--slices", default="1,2,4,8")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--instants", type=int, default=0, help="of the bound; 0: without it")
    args = parser.parse_args()
    print(f"# Slices\n\nMade by `python -m bench.slices --cases {args.cases} --slices {args.slices} "
          f"--policy {args.policy} --steps {args.steps} --instants {args.instants}`: the fastest of so many steps on "
          f"{DEVICE} (14.8 GiB, 12.4 GB/s each way) as a share of the unmanaged speed of the whole batch; its copies, "
          "replays and waits are the last step's. Largest operation: the least that it needs at once.\n")
    print("| model | batch | slices | largest operation | where all fits | bound | managed | GiB out | s recomputing "
          "| s waiting |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for case in args.cases.split(","):
        name, batch = case.split(":")
        whole = whole_or_cut(name, int(batch), 1).seconds
        for slices in map(int, args.slices.split(",")):
            print(row(name, int(batch), slices, args.policy, args.steps, whole, args.instants), flush=True)


if __name__ == "__main__":
    main()
