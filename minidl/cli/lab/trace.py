"""``minidl lab trace``: prints facts about a trace, runs it again under policies and budgets, or records a new one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

from minidl.cli.app.kinds import count
from minidl.cli.command import Parser, finish
from minidl.cli.lab import kinds
from minidl.cli.lab.run import tell
from minidl.lab import cell, sources, table
from minidl.lab.inferred import live_bytes
from minidl.outside import tables
from minidl.outside.units import format_bytes
from minidl.outside.writing import require_place, write_whole
from minidl.plan.trace import Trace
from minidl.plan.trace_format import is_trace, trace_to_json

SHARES = (0.9, 0.7, 0.5, 0.3)  # of the peak, at which ``info`` says what no plan exceeds
INSTANTS = 16


def info(arguments: argparse.Namespace) -> int:
    """Print facts about a trace: number of calls, seconds, peak, largest call, bytes that gradients need, lower bounds.
    """
    trace = sources.load(arguments.trace, arguments.device)
    machine = kinds.machine(arguments)
    seconds, peak = cell.unmanaged(trace, machine)
    print(f"{arguments.trace}: {len(trace.calls)} calls, {seconds:.4g} s, {len(trace.tensors)} tensors")
    profile = live_bytes(trace)
    top = profile.index(max(profile))
    print(f"peak {format_bytes(peak)} in call {top} ({trace.calls[top].op})")
    largest = max(trace.calls, key=lambda call: _operands(trace, {*call.inputs, *call.outputs}))
    print(f"largest call {largest.op}, {format_bytes(_operands(trace, {*largest.inputs, *largest.outputs}))}")
    lasting = [t for t in trace.tensors.values() if t.persistent]
    print(f"lasting {format_bytes(sum(t.nbytes for t in lasting))} in {len(lasting)} tensors; "
          f"kept for gradients {format_bytes(_operands(trace, _saved(trace)))}")
    by_op: dict[str, float] = {}
    for call in trace.calls:
        by_op[call.op] = by_op.get(call.op, 0.0) + call.algorithms[0].seconds  # as in a replay with unlimited memory
    longest = sorted(by_op.items(), key=lambda entry: -entry[1])[:arguments.rows]
    print("\n".join(tables.table([("operation", "seconds", "share"), *(
        (op, f"{spent:.4g}", f"{spent / (sum(by_op.values()) or 1):.1%}") for op, spent in longest)])))
    for share in SHARES:
        limit = cell.bound_seconds(trace, machine, int(share * peak), INSTANTS)
        speed = seconds / limit if limit else 1.0  # calls may take no time, on a device that launches them in none
        print(f"bound at {share:.0%} ({format_bytes(share * peak)}): "
              + ("cannot fit" if limit == float("inf") else f"{speed:.1%} of the unmanaged speed"))
    return 0


def _operands(trace: Trace, ids: set[int]) -> int:
    return sum(trace.tensors[i].nbytes for i in ids)


def _saved(trace: Trace) -> set[int]:
    return {i for call in trace.calls for i in call.saves if not trace.tensors[i].persistent}


def replay(arguments: argparse.Namespace) -> int:
    """Run a trace again, once for each policy and budget, and print a row for each."""
    if arguments.save:
        require_place(arguments.save, table.is_own, force=arguments.force)
    reference = table.settled(table.read_csv(arguments.reference)) if arguments.reference else None
    machines = kinds.machines(arguments)
    trace = sources.load(arguments.trace, arguments.device)
    rows: list[dict[str, object]] = []
    wanted = list(product(machines, arguments.budget, arguments.policy))
    for machine, budget, policy in wanted:
        row = cell.run(arguments.trace, trace, machine, policy, budget, steps=arguments.steps, instants=arguments.bound)
        rows.append(row.values())
        tell(len(rows), len(wanted), row)
    print("\n".join(table.shown(rows, reference=reference)))
    if arguments.save:
        table.write(arguments.save, rows, force=arguments.force)
    return 0


def capture(arguments: argparse.Namespace) -> int:
    """Write the trace of a network of minidl, of a PyTorch program, or of a log."""
    require_place(arguments.out, is_trace, force=arguments.force)
    trace = sources.load(arguments.source, arguments.device, fused=not arguments.separate,
                         measured=arguments.measured)
    write_whole(arguments.out, trace_to_json(trace).encode(), is_trace, force=arguments.force)
    print(f"{arguments.out}: {len(trace.calls)} calls, {trace.seconds:.4g} s, {len(trace.tensors)} tensors")
    return 0


def parser() -> Parser:
    """Return the parser of the command's flags."""
    top = Parser(prog="minidl lab trace", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    look = commands.add_parser("info", help="what is in a trace", description=info.__doc__)
    look.add_argument("trace", metavar="TRACE", help="a file, or a network and its batch, like resnet50:220")
    look.add_argument("--rows", type=count, default=8, help="operations that are listed")
    look.set_defaults(story=info)
    again = commands.add_parser("replay", help="run it again under policies and budgets", description=replay.__doc__)
    again.add_argument("trace", metavar="TRACE", help="a file, or a network and its batch, like resnet50:220")
    again.add_argument("--policy", type=kinds.chosen_policies, default=["auto"], metavar="A,B", help="policies")
    again.add_argument("--budget", type=kinds.budgets, default=[0.5], metavar="A,B",
                       help="device memory: 50%% of the unmanaged peak, or 8GiB")
    again.add_argument("--steps", type=count, help="at most so many iterations; by default until nothing changes")
    again.add_argument("--bound", type=count, default=0, metavar="N", help="what no plan exceeds, looked at N instants")
    again.add_argument("--reference", metavar="CSV", help="an earlier table, to compare with")
    again.add_argument("--save", metavar="FILE", help="the rows as CSV, or as Parquet if it is called so")
    again.set_defaults(story=replay)
    make = commands.add_parser("capture", help="make a trace", description=capture.__doc__)
    make.add_argument("source", help="resnet50:220, torch:package.module:function:32, log.csv or x.log")
    make.add_argument("out", metavar="OUT.json")
    make.add_argument("--separate", action="store_true", help="batch norm, addition and ReLU as separate operations")
    make.add_argument("--measured", action="store_true", help="time a program of PyTorch's by a run on this CPU")
    make.set_defaults(story=capture)
    for each in (look, again, make):
        kinds.add_machine(each)
    for each in (again, make):
        each.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's own); return its exit code: 0, or 2 after one line about an error."""
    def story() -> int:
        arguments = parser().parse_args(argv)
        code: int = arguments.story(arguments)
        return code

    return finish("minidl lab trace", story)
