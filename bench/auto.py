"""`auto` against every other policy on sim:p100: every network of ``--list-models``, in parts of its unmanaged peak.

    python -m bench.auto --log cells.jsonl [--networks resnet50,...] [--budgets 90,50,30] [--alone] [--minutes N]
    python -m bench.auto --log cells.jsonl --print speeds|predictions|planning

Without ``--print``, cells that the log does not have are run and added to it. A speed is that of a step when plans have
settled. Other policies run only where `auto` is so far from the bound that one of them could win, and never with
``--alone``.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic

from bench.cells import STEPS, Cell, keep, measure, read, unmanaged
from minidl.lab.training_step import BATCHES

BUDGETS = "95,90,80,70,60,50,40,30,20"
LOST = 0.005  # a cell that `auto` loses by more is marked
EXACT = 0.01  # a prediction that is off by more is marked
UNMANAGED = "none"
Cells = dict[tuple[str, int, str], Cell]


def sweep(log: Path, networks: list[str], budgets: list[int], policies: Iterable[str], end: float) -> None:
    """Run the cells that the log does not have yet, until the clock reads ``end``. policies: those run beside `auto`.
    """
    cells = {(cell.network, cell.percent, cell.policy): cell for cell in read(log)}
    measure("resnet20", 50, "auto", unmanaged("resnet20")[1])  # loads and, on a new machine, compiles
    for network in networks:
        if monotonic() > end:
            return
        limit, peak = unmanaged(network)
        if (network, 100, UNMANAGED) not in cells:
            keep(log, Cell(network, 100, UNMANAGED, limit))
        for percent in budgets:
            found = cells.get((network, percent, "auto"))
            for policy in ("auto", *policies):
                if monotonic() > end or found and (found.seconds < inf) and limit >= found.seconds * (1.0 - LOST):
                    break
                if (network, percent, policy) not in cells:
                    cell = cells[network, percent, policy] = measure(network, percent, policy, peak)
                    keep(log, cell)
                found = cells[network, percent, "auto"]


def speeds(cells: Cells) -> Iterator[str]:
    """Yield the lines of a table: each policy's speed in each cell, in percent of the unmanaged speed."""
    yield ("# `auto` beside every other policy\n\nMade by `python -m bench.auto`. Percent of the unmanaged speed on "
           "sim:p100, by what of the unmanaged peak there is;\n`-` does not fit; empty: not run, since `auto` is "
           f"within {LOST:.1%} of the unmanaged speed. A star: another policy is faster by more than {LOST:.1%}.\n")
    yield "| network | batch | budget | " + " | ".join(STEPS) + " |"
    yield "|---|--:|--:|" + "--:|" * len(STEPS)
    for network, percent in _rows(cells):
        limit = cells[network, 100, UNMANAGED].seconds
        shares = {policy: limit / cells[network, percent, policy].seconds for policy in STEPS
                  if (network, percent, policy) in cells}
        texts = [f"{100 * shares[p]:.1f}" if shares.get(p) else "-" if p in shares else "" for p in STEPS]
        texts[-1] += "*" * (max(shares.values()) > shares["auto"] * (1.0 + LOST))
        yield f"| {network} | {BATCHES[network]} | {percent}% | {' | '.join(texts)} |"


def predictions(cells: Cells) -> Iterator[str]:
    """Yield the lines of a table: by how much steps took longer than the plan that they followed had predicted."""
    yield ("# Predicted and observed\n\nMade by `python -m bench.auto`. By how much a step took longer than the plan "
           f"of `auto` had predicted, in percent, by\nwhat of the unmanaged peak there is, on sim:p100; `-`: no plan "
           f"is followed. A star: more than {EXACT:.0%}.\n")
    yield from _by_network(cells, lambda cell: "-" if cell.predicted is None else (
        f"{100 * (cell.seconds / cell.predicted - 1):+.1f}"
        + "*" * (abs(cell.seconds / cell.predicted - 1) > EXACT)))


def planning(cells: Cells) -> Iterator[str]:
    """Yield the lines of a table: seconds that the first plan of each cell took to make, and that all its plans took.
    """
    yield ("# Planning time of `auto`, every network\n\nMade by `python -m bench.auto`: seconds of the first plan / of "
           "all planning, on this machine's processor, by what of\nthe unmanaged peak there is. `-`: all fits, or "
           "nothing does.\n")
    yield from _by_network(cells, lambda cell: f"{cell.planning[0]:.2f} / {sum(cell.planning):.1f}"
                           if cell.planning else "-")
    first = [cell.planning[0] for cell in cells.values() if cell.planning]
    every = [sum(cell.planning) for cell in cells.values() if cell.planning]
    if first:
        yield (f"\nFirst plans: median {median(first):.2f} s, the longest {max(first):.2f} s; all planning: median "
               f"{median(every):.1f} s, the longest {max(every):.1f} s.")


def _rows(cells: Cells) -> list[tuple[str, int]]:
    known = {(network, percent) for network, percent, policy in cells if policy == "auto"}
    return [(network, percent) for network in BATCHES for percent in range(100, 0, -1) if (network, percent) in known]


def _by_network(cells: Cells, text: Callable[[Cell], str]) -> Iterator[str]:
    rows = _rows(cells)
    budgets = sorted({percent for _, percent in rows}, reverse=True)
    yield "| network | batch | " + " | ".join(f"{percent}%" for percent in budgets) + " |"
    yield "|---|--:|" + "--:|" * len(budgets)
    for network in dict.fromkeys(network for network, _ in rows):
        texts = [text(cells[network, p, "auto"]) if (network, p) in rows else "" for p in budgets]
        yield f"| {network} | {BATCHES[network]} | {' | '.join(texts)} |"


TABLES = {"speeds": speeds, "predictions": predictions, "planning": planning}


def main() -> None:
    """Read the command line, and run cells or print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True, help="where cells are kept")
    parser.add_argument("--networks", default=",".join(BATCHES))
    parser.add_argument("--budgets", default=BUDGETS, help="percent of the unmanaged peak, ...")
    parser.add_argument("--alone", action="store_true", help="run `auto` only")
    parser.add_argument("--minutes", type=float, default=inf, help="no cell is begun after so long")
    parser.add_argument("--print", choices=TABLES, dest="table", help="a table of what is in the log")
    args = parser.parse_args()
    if args.table:
        cells = {(cell.network, cell.percent, cell.policy): cell for cell in read(args.log)}
        print("\n".join(TABLES[args.table](cells)))
    else:
        sweep(args.log, args.networks.split(","), [int(percent) for percent in args.budgets.split(",")],
              () if args.alone else STEPS, monotonic() + 60 * args.minutes)


if __name__ == "__main__":
    main()
