"""Plans on the steps of other programs: what they promise against what they take, and whether more memory is slower.

    python -m bench.strangers
    python -m bench.strangers --shares 90,75,60 > bench/results/strangers.md
    python -m bench.strangers --traces vgg,vgg19:64 --policies auto,mo-sos --solver 20 --instants 40 --shares 90,75,60

The steps are those of ``tests/support/strangers.py``, or of a network at a batch size. Each runs on sim:p100 in budgets
from 95% of its unmanaged peak downwards, with a host and without, until a policy finds no room. With ``--instants`` the
table of seconds also has the least that any plan takes (``minidl.planning.bound``).
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from bench.support.promises import MISSED, Cell, dips
from minidl.lab import cell
from minidl.lab.inferred import completed
from minidl.lab.sources import load
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.policies import create
from minidl.policies.literature.ilp.policy import Checkmate

POLICIES = "auto,capuchin,capuchin-swap,capuchin-recompute"
HOSTS = {"a host": None, "none": 0}
HEAD = """# Plans on the steps of other programs

Made by `{}`, on sim:p100. Seconds are shares of the unmanaged step.

`auto` predicts by simulating the plan. `capuchin` predicts the step without waits, the seconds of copies that
computation does not hide, as the paper counts them, and the seconds of the plan's replays. A plan that leaves evictions
to on-demand mode has no prediction. The slides of blocks without planned addresses are in no prediction of `capuchin`.
"""


def cells(name: str, trace: Trace, policy: Policy, shares: Iterable[int], hosts: Iterable[str] = HOSTS
          ) -> Iterator[Cell]:
    """The cells of a trace under a policy, the largest budget first. shares: percent of the unmanaged peak."""
    for host in hosts:
        for percent in shares:
            row = cell.run(name, trace, cell.Machine(host_bytes=HOSTS[host]), policy, percent / 100)
            if row.settled_s is None:
                break
            predicted = None if row.predicted_s is None else row.predicted_s / row.unmanaged_s
            yield Cell(name, host, policy.name, percent / 100, row.settled_s / row.unmanaged_s, predicted)


def bounds(name: str, trace: Trace, shares: Iterable[int], instants: int) -> Iterator[Cell]:
    """The least seconds of any plan in each budget, whatever the host holds, as cells of a policy called "bound"."""
    machine = cell.Machine()
    seconds, peak = cell.unmanaged(trace, machine)
    for percent in shares:
        least = cell.bound_seconds(trace, machine, cell.in_bytes(percent / 100, peak), instants)
        yield Cell(name, "any", "bound", percent / 100, least / seconds, None)


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
    parser.add_argument("--hosts", default=",".join(HOSTS), help="a host, none, or both")
    parser.add_argument("--solver", type=float, help="time limit of an integer program in seconds (default: 60)")
    parser.add_argument("--instants", type=int, default=0, help="of the bound; 0: without it")
    args = parser.parse_args()
    shares = [int(n) for n in args.shares.split(",")] if args.shares else range(95, 0, -args.step)
    print(HEAD.format(" ".join(["python -m bench.strangers", *sys.argv[1:]])))
    found: list[Cell] = []
    print("| step | host | policy | budgets with a plan | predicted within 2% | largest miss | at |\n"
          "|---|---|---|--:|--:|--:|--:|")
    for name in args.traces.split(","):
        trace = load(name) if ":" in name else completed(steps[name](1))
        for policy in args.policies.split(","):
            made = create(policy)
            if isinstance(made, Checkmate) and args.solver is not None:
                made.seconds = args.solver
            ran = list(cells(name, trace, made, shares, args.hosts.split(",")))
            found += ran
            for host in HOSTS:
                missed = [(c.miss, c.share) for c in ran if c.host == host and c.miss is not None]
                if missed:
                    worst, share = max(missed, key=lambda each: abs(each[0]))
                    kept = sum(abs(miss) <= MISSED for miss, _ in missed)
                    print(f"| {name} | {host} | {policy} | {len(missed)} | {kept} | {worst:+.1%} | {share:.0%} |",
                          flush=True)
        if args.instants:
            found += bounds(name, trace, shares, args.instants)
    print_seconds(found)
    print("\n## Slower in more memory\n\n| step | host | policy | memory | took | less memory | took |\n"
          "|---|---|---|--:|--:|--:|--:|")
    for one, best in dips(found):
        print(f"| {one.trace} | {one.host} | {one.policy} | {one.share:.0%} | {one.took:.3f} | {best.share:.0%} | "
              f"{best.took:.3f} |")


if __name__ == "__main__":
    main()
