"""``minidl.lab run``: a grid of traces, budgets, machines and policies, which goes on where it was stopped."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from minidl.app.kinds import count, size
from minidl.command import Parser, finish
from minidl.errors import UserError
from minidl.lab import grid, table
from minidl.lab.cell import Row
from minidl.lab.commands import kinds
from minidl.lab.fitting import share
from minidl.lab.papers.page import Content, Page
from minidl.machine import processors


def parser() -> Parser:
    """The command's flags."""
    found = Parser(prog="python -m minidl.lab run", description=__doc__,
                   epilog="DIR/table.csv has the table, DIR/cells one file a cell: started again, those are not run.")
    found.add_argument("--traces", type=kinds.words, default=[], metavar="A,B",
                       help="files, or networks with batches, like resnet50:220")
    found.add_argument("--models", type=kinds.words, default=[], metavar="A,B", help="networks, at each of --batches")
    found.add_argument("--batches", type=kinds.words, default=[], metavar="N,M")
    found.add_argument("--budgets", type=kinds.grid_budgets, default=[None], metavar="A,B",
                       help="50%% of the unmanaged peak, 8GiB, or device for all that it has (default)")
    found.add_argument("--devices", type=kinds.words, metavar="A,B", help="several profiles, instead of --device")
    found.add_argument("--policies", type=kinds.chosen_policies, default=["passive", "capuchin", "auto"], metavar="A,B")
    found.add_argument("--out", required=True, metavar="DIR", help="where the grid lies")
    found.add_argument("--parquet", action="store_true", help="the table as DIR/table.parquet, too")
    found.add_argument("--page", metavar="FILE.md", help="shares of the unmanaged speed as a page, a column a policy")
    found.add_argument("--steps", type=count, help="at most so many iterations a cell")
    found.add_argument("--bound", type=count, default=0, metavar="N", help="what no plan exceeds, at N instants")
    found.add_argument("--separate", action="store_true", help="batch norm, addition and ReLU as separate operations")
    found.add_argument("--again", action="store_true", help="run cells again that did not come to their end")
    limits = found.add_argument_group("processes")
    limits.add_argument("--jobs", type=count, default=processors(), metavar="N",
                        help="cells at once")
    limits.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, instead of processes here")
    limits.add_argument("--timeout", type=kinds.duration, metavar="SECONDS", help="of a cell")
    limits.add_argument("--memory", type=size, metavar="SIZE", help="of a cell's process")
    kinds.add_machine(found)
    return found


def tell(number: int, count: int, row: Row) -> None:
    """A line a cell."""
    became = row.status if row.settled_s is None else f"{share(row):.1%} of the unmanaged speed"
    print(f"{number}/{count} {row.trace} {row.device} {row.policy} {row.budget_share:.0%}: {became}", flush=True)


def story(arguments: argparse.Namespace) -> int:
    """Run what is missing, write the table, and show it."""
    if bool(arguments.models) != bool(arguments.batches):
        raise UserError("--models and --batches go together: each network at each of the batches")
    sources = arguments.traces + [f"{model}:{batch}" for model in arguments.models for batch in arguments.batches]
    if not sources:
        raise UserError("nothing to run: --traces, or --models and --batches")
    one = kinds.machine(arguments)
    machines = [replace(one, profile=name) for name in arguments.devices or [one.profile]]
    for machine in machines:
        machine.described()
    wanted = grid.cells(sources, machines, arguments.budgets, arguments.policies, steps=arguments.steps or None,
                        instants=arguments.bound, fused=not arguments.separate)
    rows = grid.run(wanted, arguments.out, jobs=max(1, arguments.jobs), again=arguments.again,
                    limits=grid.Limits(arguments.timeout, arguments.memory), scheduler=arguments.scheduler, told=tell)
    values = [row.values() for row in rows]
    if arguments.parquet:
        table.write(os.path.join(arguments.out, "table.parquet"), values)
    if arguments.page:
        Page(Path(arguments.page).stem, "A grid of networks, budgets and policies", partial(shares, rows=rows),
             command=f"run {' '.join(sys.argv[2:])}").write(str(Path(arguments.page).parent))
    print("\n".join(table.shown(values)))
    return 0


def shares(content: Content, quick: bool, rows: Sequence[Row]) -> None:
    """A row a trace, device and budget; a column a policy, with its share of the unmanaged speed."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    bounds: dict[tuple[str, str, str], str] = {}
    for row in rows:
        place = row.trace, row.device, f"{row.budget_share:.0%}"
        found.setdefault(place, {})[row.policy] = (
            row.status.partition(":")[0] if row.settled_s is None else f"{share(row):.1%}")
        if row.bound_s is not None:
            bounds[place] = f"{row.unmanaged_s / row.bound_s:.1%}"
    content.say("Shares of the speed with unlimited memory, once settled; the bound is what no plan exceeds. \"no "
                "room\" is an operation that failed, \"cannot\" a policy that refused, \"time\" a cell that took too "
                "long.")
    content.table(("trace", "device", "budget", "bound", *(f"`{name}`" for name in policies)), [
        (*place, bounds.get(place, "-"), *(shown.get(name, "-") for name in policies))
        for place, shown in found.items()])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code: 0, or 2 after one line about what the user got wrong."""
    return finish("lab run", lambda: story(parser().parse_args(argv)))
