"""The speed that no plan exceeds on sim:p100: the bound of ``minidl.planning.bound`` for known models and batches.

    python -m bench.bounds [--instants N] > bench/results/bounds.md

The cases are those of ``bench.policies``, so that each of its rows has a bound.
"""

import argparse
from time import perf_counter

from bench.policies import CASES
from bench.support.steps import unmanaged_trace
from minidl.planning.bound import INSTANTS, bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instants", type=int, default=INSTANTS, help="calls during which memory is looked at")
    args = parser.parse_args()
    print("# Bounds\n\nMade by `python -m bench.bounds`. No plan for a step on sim:p100 (14.8 GiB, 12.4 GB/s each way) "
          f"is faster than this share of the unmanaged speed; memory is looked at during {args.instants} calls. Beside "
          "it: what the best fractional plan repeats and waits, in shares of the step, and what it copies out.\n")
    print("| model | batch | bound | images/s | repeated | waits | copied out | solved in |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, batch, _, _ in CASES:
        trace, costs, budget = unmanaged_trace(name, batch)
        began = perf_counter()
        found = bound(trace, costs, budget, instants=args.instants)
        took = perf_counter() - began
        print(f"| {name} | {batch} | {100 * found.speed:.1f}% | {batch / found.seconds:.1f} | "
              f"{100 * found.replay_seconds / found.seconds:.1f}% | {100 * found.stall_seconds / found.seconds:.1f}% | "
              f"{found.moved_bytes / 1e9:.1f} GB | {took:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
