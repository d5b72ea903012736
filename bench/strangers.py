"""Plans on the steps of other programs: what they promise against what they take, and whether more memory is slower.

    python -m bench.strangers
    python -m bench.strangers --traces gan --policies auto,capuchin,capuchin-swap --step 10 > bench/results/strangers.md

The steps are those of ``tests/support/strangers.py``. Each runs on sim:p100 in budgets from 95% of its unmanaged peak
downwards, with a host and without, until a policy finds no room.
"""

import argparse
import sys
from collections.abc import Iterator
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

`auto` predicts by simulating the plan. `capuchin` predicts as the paper counts: the step without waits, and the
overhead of each decision. Its prediction leaves out the host's size (a swap for which the host has no room becomes a
replay) and evictions on demand beside the plan.
"""


def cells(name: str, trace: Trace, policy: str, step: int) -> Iterator[Cell]:
    """The cells of a trace under a policy, the largest budget first."""
    for host, host_bytes in HOSTS.items():
        for percent in range(95, 0, -step):
            row = cell.run(name, trace, cell.Machine(host_bytes=host_bytes), policy, percent / 100)
            if row.settled_s is None:
                break
            predicted = None if row.predicted_s is None else row.predicted_s / row.unmanaged_s
            yield Cell(name, host, policy, percent / 100, row.settled_s / row.unmanaged_s, predicted)


def main() -> None:
    """The command line."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    steps = import_module("strangers").STRANGERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=",".join(steps))
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--step", type=int, default=5, help="percent of the peak between two budgets (default: 5)")
    args = parser.parse_args()
    print(HEAD.format(" ".join(["python -m bench.strangers", *sys.argv[1:]])))
    found: list[Cell] = []
    print("| step | host | policy | budgets with a plan | predicted within 2% | largest miss | at |\n"
          "|---|---|---|--:|--:|--:|--:|")
    for name in args.traces.split(","):
        trace = completed(steps[name](1))
        for policy in args.policies.split(","):
            ran = list(cells(name, trace, policy, args.step))
            found += ran
            for host in HOSTS:
                missed = [(c.miss, c.share) for c in ran if c.host == host and c.miss is not None]
                if missed:
                    worst, share = max(missed, key=lambda each: abs(each[0]))
                    kept = sum(abs(miss) <= MISSED for miss, _ in missed)
                    print(f"| {name} | {host} | {policy} | {len(missed)} | {kept} | {worst:+.1%} | {share:.0%} |",
                          flush=True)
    print("\n## Slower in more memory\n\n| step | host | policy | memory | took | less memory | took |\n"
          "|---|---|---|--:|--:|--:|--:|")
    for one, best in dips(found):
        print(f"| {one.trace} | {one.host} | {one.policy} | {one.share:.0%} | {one.took:.3f} | {best.share:.0%} | "
              f"{best.took:.3f} |")


if __name__ == "__main__":
    main()
