"""Plans on the steps of other programs: what they promise against what they take, and whether more memory is slower.

    python -m bench.strangers
    python -m bench.strangers --shares 90,75,60 > bench/results/strangers.md

The steps are those of ``tests/support/strangers.py``. Each runs on sim:p100 in budgets from 95% of its unmanaged peak
downwards, with a host and without, until a policy finds no room.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from bench.support.promises import MISSED, Cell, dips
from minidl.lab import cell
from minidl.lab.inferred import completed
from minidl.plan.trace import Trace

POLICIES = "auto,capuchin,capuchin-swap,capuchin-recompute"
HOSTS = {"a host": None, "none": 0}
HEAD = """# Plans on the steps of other programs

Made by `{}`, on sim:p100. Seconds are shares of the unmanaged step.

`auto` predicts by simulating the plan. `capuchin` predicts the step without waits, the seconds of copies that
computation does not hide, as the paper counts them, and the seconds of the plan's replays. A plan that leaves evictions
to on-demand mode has no prediction. The slides of blocks without planned addresses are in no prediction of `capuchin`.
"""


def cells(name: str, trace: Trace, policy: str, shares: Iterable[int]) -> Iterator[Cell]:
    """The cells of a trace under a policy, the largest budget first. shares: percent of the unmanaged peak."""
    for host, host_bytes in HOSTS.items():
        for percent in shares:
            row = cell.run(name, trace, cell.Machine(host_bytes=host_bytes), policy, percent / 100)
            if row.settled_s is None:
                break
            predicted = None if row.predicted_s is None else row.predicted_s / row.unmanaged_s
            yield Cell(name, host, policy, percent / 100, row.settled_s / row.unmanaged_s, predicted)


def print_seconds(found: list[Cell]) -> None:
    """Print a table of the seconds that steps take, by budget. A policy without a number finds no room."""
    shares = sorted({c.share for c in found}, reverse=True)
    print("\n## Seconds\n\n| step | host | policy | " + " | ".join(f"{share:.0%}" for share in shares)
          + " |\n|---|---|---|" + "--:|" * len(shares))
    took = {(c.trace, c.host, c.policy, c.share): f"{c.took:.3f}" for c in found}
    for key in dict.fromkeys((c.trace, c.host, c.policy) for c in found):
        print("| " + " | ".join([*key, *(took.get((*key, share), "") for share in shares)]) + " |")


def main() -> None:
    """The command line."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    steps = import_module("strangers").STRANGERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=",".join(steps))
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--step", type=int, default=5, help="percent of the peak between two budgets (default: 5)")
    parser.add_argument("--shares", help="budgets in percent of the peak, in place of --step: 90,75,60")
    args = parser.parse_args()
    shares = [int(n) for n in args.shares.split(",")] if args.shares else range(95, 0, -args.step)
    print(HEAD.format(" ".join(["python -m bench.strangers", *sys.argv[1:]])))
    found: list[Cell] = []
    print("| step | host | policy | budgets with a plan | predicted within 2% | largest miss | at |\n"
          "|---|---|---|--:|--:|--:|--:|")
    for name in args.traces.split(","):
        trace = completed(steps[name](1))
        for policy in args.policies.split(","):
            ran = list(cells(name, trace, policy, shares))
            found += ran
            for host in HOSTS:
                missed = [(c.miss, c.share) for c in ran if c.host == host and c.miss is not None]
                if missed:
                    worst, share = max(missed, key=lambda each: abs(each[0]))
                    kept = sum(abs(miss) <= MISSED for miss, _ in missed)
                    print(f"| {name} | {host} | {policy} | {len(missed)} | {kept} | {worst:+.1%} | {share:.0%} |",
                          flush=True)
    print_seconds(found)
    print("\n## Slower in more memory\n\n| step | host | policy | memory | took | less memory | took |\n"
          "|---|---|---|--:|--:|--:|--:|")
    for one, best in dips(found):
        print(f"| {one.trace} | {one.host} | {one.policy} | {one.share:.0%} | {one.took:.3f} | {best.share:.0%} | "
              f"{best.took:.3f} |")


if __name__ == "__main__":
    main()
