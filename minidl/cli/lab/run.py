"""``minidl lab run``: runs traces under every combination of policy, budget and machine, and writes a table.
A run that was interrupted continues with the missing combinations (cells)."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from minidl.cli.app.kinds import count, size
from minidl.cli.command import Parser, finish
from minidl.cli.lab import kinds, paper
from minidl.errors import UserError
from minidl.lab import grid, kept, speeds, table
from minidl.lab.drawing import is_png, require_matplotlib
from minidl.lab.fitting import share
from minidl.lab.row import CellResult
from minidl.lab.sources import FILES, TORCH
from minidl.lab.training_step import BATCHES
from minidl.outside.machine import processors
from minidl.outside.writing import require_place, write_whole


def parser() -> Parser:
    """Return the parser of the command's flags."""
    found = Parser(prog="minidl lab run", description=__doc__,
                   epilog="DIR/table.csv has the table, DIR/cells one file a cell: started again, those are not run.")
    found.add_argument("--traces", type=kinds.words, default=[], metavar="A,B",
                       help="files, or networks with batches, like resnet50:220")
    found.add_argument("--models", type=kinds.chosen_models, default=[], metavar="A,B",
                       help="networks, or all, at each of --batches")
    found.add_argument("--batches", type=kinds.words, default=[], metavar="N,M",
                       help="without it networks of ours are at one of about a second on a P100")
    found.add_argument("--budgets", type=kinds.grid_budgets, default=[None], metavar="A,B",
                       help="50%% of the unmanaged peak, 8GiB, or device for all that it has (default)")
    found.add_argument("--devices", type=kinds.words, metavar="A,B", help="several profiles, instead of --device")
    found.add_argument("--policies", type=kinds.chosen_policies, default=["passive", "capuchin", "auto"], metavar="A,B",
                       help="by their names; all: those that solve no integer programs")
    found.add_argument("--out", required=True, metavar="DIR", help="where the grid lies")
    found.add_argument("--parquet", action="store_true", help="the table as DIR/table.parquet, too")
    found.add_argument("--plot", metavar="FILE.png", help="speeds by budget and policy as a picture, with the bound")
    found.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    found.add_argument("--page", metavar="FILE.md", help="speeds as a page, beside the bound (in a checkout of minidl)")
    found.add_argument("--note", metavar="TEXT", help="a paragraph at the head of that page")
    found.add_argument("--kept", action="store_true", help="run nothing: show the saved cells")
    found.add_argument("--steps", type=count, help="at most so many iterations a cell")
    found.add_argument("--settled", type=kinds.chosen_policies, default=[], metavar="A,B",
                       help="policies that run until nothing changes any more, whatever --steps says")
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
    found.add_argument("--ranks", type=kinds.counts, default=[1], metavar="N,M",
                       help="so many devices behind one switch train a network, each with its batch; rows are of one "
                            "of them")
    return found


def tell(number: int, count: int, row: CellResult) -> None:
    """Print a line about a cell of the grid that has run, number ``number`` of ``count``."""
    became = row.status if row.settled_s is None else f"{share(row):.1%} of the unmanaged speed"
    values = row.values()
    print(f"{number}/{count} {table.trace_of(values)} {row.device} {table.policy_of(values)} {row.budget_share:.0%}: "
          f"{became}", flush=True)


def sources(arguments: argparse.Namespace) -> list[str]:
    """Return the names of the traces that the flags ask for. Raises UserError if there are none."""
    named = arguments.traces + [f"{model}:{batch}" for model in arguments.models for batch in arguments.batches]
    if arguments.batches and not arguments.models:
        raise UserError("--batches takes --models: each network at each of the batches")
    if not arguments.batches:
        for model in arguments.models:
            if model not in BATCHES:
                raise UserError(f"--models {model} takes --batches: only networks of ours have one of their own")
            named.append(f"{model}:{BATCHES[model]}")
    if not named:
        raise UserError("nothing to run: --traces, or --models")
    return list(dict.fromkeys(named))


def refuse_ranks(arguments: argparse.Namespace) -> None:
    """Raise UserError for flags that do not go with several ranks."""
    other = next((source for source in sources(arguments) if source.endswith(FILES) or source.startswith(TORCH)), None)
    if other is not None:
        raise UserError(f"--ranks takes networks of minidl, as resnet50:220: {other} has no exchanges")
    kinds.refuse_for_ranks(max(arguments.ranks), arguments)


def story(arguments: argparse.Namespace, given: Sequence[str]) -> int:
    """Run the missing cells of the grid, write and print the table, and return the exit code."""
    if arguments.plot:
        require_matplotlib()  # before the first cell runs
        require_place(arguments.plot, is_png, force=arguments.force)
    page = paper.module("--page", "grid_page") if arguments.page else None
    if page is not None and max(len(arguments.placement), len(arguments.ranks)) > 1:
        raise UserError("--page takes one placement and one number of ranks: it has a column for each budget")
    each = kinds.machines(arguments)
    machines = [replace(one, profile=name, ranks=ranks) for name in arguments.devices or [arguments.device]
                for ranks in arguments.ranks for one in each]
    for machine in machines:
        machine.described()
    if max(arguments.ranks) > 1:
        refuse_ranks(arguments)
    wanted = kept.cells(sources(arguments), machines, arguments.budgets, arguments.policies,
                        steps=arguments.steps or None, instants=arguments.bound, fused=not arguments.separate)
    wanted = [replace(cell, steps=None) if cell.policy in arguments.settled else cell for cell in wanted]
    if arguments.kept:
        rows = kept.known(wanted, arguments.out)
    else:
        rows = grid.run(wanted, arguments.out, jobs=max(1, arguments.jobs), again=arguments.again, told=tell,
                        limits=grid.CellLimits(arguments.timeout, arguments.memory), scheduler=arguments.scheduler)
    values = [row.values() for row in rows]
    if arguments.parquet:
        table.write(os.path.join(arguments.out, "table.parquet"), values, force=arguments.force)
    if arguments.plot:
        write_whole(arguments.plot, speeds.picture(rows), is_png, force=arguments.force)
    if page is not None:
        words = shlex.join(word for word in given if word not in ("--kept", "--note", arguments.note))
        page.write(arguments.page, words, rows, len(wanted), arguments.steps, arguments.note)
    print("\n".join(table.shown(values)))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's own); return its exit code: 0, or 2 after one line about an error."""
    return finish("minidl lab run", lambda: story(parser().parse_args(argv), sys.argv[1:] if argv is None else argv))
