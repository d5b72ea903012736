"""The share of speed by budget: whether it falls with the budget alone, and whether ``auto`` is first in each budget.

    python -m bench.monotone --rows bench/results/monotone.csv --step 10 > bench/results/monotone.md
    python -m bench.monotone --rows ROWS.csv --traces gpt2:8,gan --step 1 --shares SHARES.csv --picture PICTURE.png

A trace is a network at a batch (``resnet50:256``) or a step of ``tests/support/strangers.py`` by its name, which runs
with a host and without. Budgets go from 100% of the unmanaged peak downwards, until ``auto`` finds no room. Each row is
written to the file at once, and rows that are there are not run again, so the benchmark can be stopped and resumed.
``--shares`` writes a short row for each cell: its seconds, and those predicted, in shares of the unmanaged step.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from bench.support.promises import SLOWER, Cell, dips
from minidl.lab import cell, speeds, table
from minidl.lab.inferred import completed
from minidl.lab.row import CellResult
from minidl.lab.sources import load
from minidl.plan.trace import Trace
from minidl.policies import CHOICES
from minidl.policies.literature import SOLVERS

NETWORKS = "resnet50:128,bert-base:64,gpt2:4,unet:16"
OTHERS = ",".join(name for name in CHOICES if name not in (*SOLVERS, "auto", "none", "vdnn-dyn"))
MOST_SHOWN = 10  # budgets of a trace whose seconds the table has
NO_HOST = ", no host"  # at the end of a trace's name in the rows


def steps_of_others() -> dict[str, Trace]:
    """Return the steps of ``tests/support/strangers.py`` by name."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    return {name: completed(make(1)) for name, make in import_module("strangers").STRANGERS.items()}


def cells(names: list[str], policies: list[str], step: int, rows: dict[tuple[str, str, int], CellResult],
          path: Path) -> None:
    """Run the cells that ``rows`` lacks, and add them to it and to the file. The key is trace, policy and percent."""
    strangers = steps_of_others()
    for name in names:
        trace = strangers[name] if name in strangers else load(name)
        for host, host_bytes in (("", None), (NO_HOST, 0)) if name in strangers else (("", None),):
            for percent in range(100, 0, -step):
                for policy in policies:
                    key = (name + host, policy, percent)
                    if key not in rows:
                        rows[key] = cell.run(name + host, trace, cell.Machine(host_bytes=host_bytes), policy,
                                             percent / 100)
                        path.write_text(table.to_csv(row.values() for row in rows.values()))
                if rows[name + host, policies[0], percent].settled_s is None:
                    break


def known(path: Path) -> dict[tuple[str, str, int], CellResult]:
    """Return the rows in a file, by trace, policy and percent; none without a file."""
    found = [CellResult(**row) for row in table.read_csv(str(path))] if path.exists() else []  # type: ignore[arg-type]
    return {(row.trace, row.policy, round(100 * row.budget_share)): row for row in found}


def report(found: list[Cell], first: str) -> None:
    """Print a line for each trace: its budgets, where less memory is faster, and where another policy is."""
    print("| step | budgets | seconds in some of them, in shares of the unmanaged step | largest step up | at | "
          "beaten in | most | by | at |\n|---|---|---|--:|--:|--:|--:|---|--:|")
    for name in dict.fromkeys(c.trace for c in found):
        ours = sorted((c for c in found if c.trace == name and c.policy == first), key=lambda c: -c.share)
        ups = [(one.took - best.took, one.share) for one, best in dips(ours)]
        up, where = max(ups, default=(0.0, None))
        lost = [(c.took - other.took, other.policy, c.share) for c in ours for other in found
                if (other.trace, other.share) == (name, c.share) and other.took < c.took - SLOWER]
        most, by, at = max(lost, default=(0.0, "", None))
        shares, shown = [c.share for c in ours], ours[::-(-len(ours) // MOST_SHOWN)]
        print(f"| {name} | {len(ours)}, {max(shares):.0%} to {min(shares):.0%} | "
              f"{' '.join(f'{c.took:.3f}' for c in shown)} | {f'{up:.1%}' if ups else ''} | "
              f"{'' if where is None else f'{where:.0%}'} | {len({share for _, _, share in lost})} | "
              f"{f'{most:.1%}' if lost else ''} | {by} | {'' if at is None else f'{at:.0%}'} |")


def _share(seconds: float | None, row: CellResult) -> str:
    return "" if seconds is None else f"{seconds / row.unmanaged_s:.4f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=NETWORKS)
    parser.add_argument("--policies", default=f"auto,{OTHERS}", help="the first is compared with the others")
    parser.add_argument("--step", type=int, default=5, help="percent of the peak between two budgets (default: 5)")
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--shares", type=Path, metavar="FILE.csv", help="a short row for each cell")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="speed by budget (extra viz)")
    args = parser.parse_args()
    rows = known(args.rows)
    cells(args.traces.split(","), policies := args.policies.split(","), args.step, rows, args.rows)
    found = [Cell(name, "", policy, percent / 100, row.settled_s / row.unmanaged_s, None)
             for (name, policy, percent), row in rows.items() if row.settled_s is not None and policy in policies]
    print(f"# Speed by budget\n\nMade by `{' '.join(['python -m bench.monotone', *sys.argv[1:]])}`,\non "
          f"sim:p100. A step up or a lead below {SLOWER:.1%} of the unmanaged step does not count.\n")
    report(found, policies[0])
    if args.shares:
        args.shares.write_text("trace,policy,percent,took,predicted\n" + "".join(
            f'"{name}",{policy},{percent},{_share(row.settled_s, row)},{_share(row.predicted_s, row)}\n'
            for (name, policy, percent), row in rows.items()))
    if args.picture:
        args.picture.write_bytes(speeds.picture([row for (name, _, _), row in rows.items()
                                                 if name in args.traces.split(",")]))


if __name__ == "__main__":
    main()
