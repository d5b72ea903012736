"""Slices on sim:p100: batches near the wall and beyond it, in so many slices, beside the unmanaged speed.

    python -m bench.slices [--cases resnet50:1440,...] [--slices 1,2,4,8] [--steps 40] > bench/results/slices.md

A share is the speed of the fastest step over that of the same batch, whole, with unlimited memory. Beside it what
cutting costs where all fits, and the bytes of the largest operation. Copies, replays and waits are the last step's.
"""

import argparse

from minidl import OutOfMemory, Runtime
from minidl.testing.steps import UNLIMITED, run, training_step, unmanaged
from minidl.units import format_bytes

CASES = "resnet50:1440,resnet50:1840,resnet50:2300,vgg16:525,resnet50:4600"


def row(name: str, batch: int, slices: int, policy: str, steps: int, free: float) -> str:
    """One batch in so many slices; ``free``: images a second of the whole with unlimited memory."""
    with Runtime("sim:p100", memory_budget=UNLIMITED, policy="none", slices=slices) as runtime:
        needed = format_bytes(runtime.dry_run(training_step(runtime, name, batch)).largest_op_bytes)
    kept = run(name, batch, "none", budget=UNLIMITED, slices=slices).images_per_second / free
    try:
        found = run(name, batch, policy, steps=steps, slices=slices)
        last = found.last
        cells = (f"{100 * batch / found.best_seconds / free:.1f}% | {last.swapped_out_bytes / 2**30:.0f} | "
                 f"{last.recompute_seconds:.2f} | {last.stall_seconds:.2f}")
    except OutOfMemory:
        cells = "does not fit | | | "
    return f"| {name} | {batch:,} | {slices} | {needed} | {100 * kept:.1f}% | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES, help="model:batch, ...")
    parser.add_argument("--slices", default="1,2,4,8")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    print(f"# Slices\n\nMade by `python -m bench.slices --cases {args.cases} --slices {args.slices} "
          f"--policy {args.policy} --steps {args.steps}`: the fastest of so many steps on sim:p100 (14.8 GiB, "
          "12.4 GB/s each way) as a share of the unmanaged speed of the whole batch; its copies, replays and waits are "
          "the last step's. Largest operation: the least that it needs at once.\n")
    print("| model | batch | slices | largest operation | where all fits | managed | GiB out | s recomputing "
          "| s waiting |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in args.cases.split(","):
        name, batch = case.split(":")
        free = unmanaged(name, int(batch)).images_per_second
        for slices in map(int, args.slices.split(",")):
            print(row(name, int(batch), slices, args.policy, args.steps, free), flush=True)


if __name__ == "__main__":
    main()
