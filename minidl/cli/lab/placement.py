"""``minidl lab placement``: assigns addresses to the buffers of a log or a trace, once with each placement strategy.
It prints the memory that each needs beside the lower bound, the largest sum of bytes in use at one moment."""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Sequence

from minidl.cli.command import Parser, finish
from minidl.errors import OutOfMemory, UserError
from minidl.lab import sources
from minidl.lab.drawing import figure_of, is_png
from minidl.lab.lifetimes import Lifetime, is_own, lower_bound, read_log, write_offsets
from minidl.lab.placement import REGISTRY, PlacedBuffers, Strategy, check, lifetimes_of, over_time, strategies
from minidl.outside.stages import stage
from minidl.outside.tables import table
from minidl.outside.units import format_bytes, parse_bytes
from minidl.outside.writing import begins_with, require_place, write_whole

PROGRAMS = (".log", ".json")
TIMES = ["strategy", "time", "height", "holes"]
_is_times = begins_with(",".join(TIMES).encode())


def _chosen(name: str) -> dict[str, Strategy]:
    return strategies() if name == "all" else {name: REGISTRY.create(name)}


def _lifetimes(arguments: argparse.Namespace) -> list[Lifetime]:
    if (arguments.log is None) == (arguments.source is None):
        raise UserError("one of a log and --from is wanted")
    if arguments.source is None and not arguments.log.endswith(PROGRAMS):
        return read_log(arguments.log)
    return lifetimes_of(sources.load(arguments.source or arguments.log))


def _compare(arguments: argparse.Namespace) -> None:
    chosen = _chosen(arguments.strategy)
    capacity = None if arguments.capacity is None else parse_bytes(arguments.capacity)
    for path, own in ((arguments.save, is_own), (arguments.over_time, _is_times), (arguments.picture, is_png)):
        if path is not None:
            require_place(path, own, force=arguments.force)
    lifetimes = _lifetimes(arguments)
    name_of_log = arguments.log or arguments.source
    bound = lower_bound(lifetimes)
    if capacity is not None and bound > capacity:
        raise OutOfMemory(f"{name_of_log} does not fit {format_bytes(capacity)}: "
                          f"up to {format_bytes(bound)} are live at once", need_bytes=bound, budget_bytes=capacity)
    results: dict[str, PlacedBuffers] = {}
    rows: list[tuple[str, ...]] = [("strategy", "peak MiB", "over bound %", "seconds")]
    refusal: OutOfMemory | None = None
    for name, strategy in chosen.items():
        start = time.perf_counter()
        try:
            with stage(f"placing by {name}"):
                placed = strategy(lifetimes, capacity)
        except OutOfMemory as error:
            refusal = OutOfMemory(f"{name_of_log} does not fit with {name}: {error}")
            rows.append((name, "does not fit"))
            continue
        seconds = time.perf_counter() - start
        try:
            check(placed, lifetimes)
        except AssertionError as error:  # a strategy may be the user's
            raise UserError(f"{name} places wrongly: {error}") from None
        results[name] = placed
        over = 100 * (placed.peak_bytes / bound - 1)
        rows.append((name, f"{placed.peak_bytes / 2**20:.2f}", f"{over:.2f}", f"{seconds:.3f}"))
    if not results and refusal is not None:
        raise refusal
    best = min(results, key=lambda name: results[name].peak_bytes)
    if arguments.save is not None:
        write_offsets(arguments.save, lifetimes, results[best].offsets, force=arguments.force)
    if arguments.over_time is not None:
        write_whole(arguments.over_time, _times(results, lifetimes), _is_times, force=arguments.force)
    if arguments.picture is not None:
        write_whole(arguments.picture, picture(results[best], lifetimes, best), is_png, force=arguments.force)
    print(f"{name_of_log}: {len(lifetimes)} buffers, lower bound {bound / 2**20:.2f} MiB")
    print("\n".join(table(rows)))
    if arguments.save is not None:
        print(f"offsets of {best} saved to {arguments.save}")


def _times(results: dict[str, PlacedBuffers], lifetimes: Sequence[Lifetime]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(TIMES)
    for name, placed in results.items():
        writer.writerows((name, *row) for row in over_time(placed, lifetimes))
    return out.getvalue().encode()


def picture(placed: PlacedBuffers, lifetimes: Sequence[Lifetime], name: str) -> bytes:
    """Return a PNG with one rectangle per buffer: time on the x axis, addresses on the y axis.
    Raises UserError without matplotlib."""
    with figure_of(7.0, 4.0) as (figure, axes, done):
        for lifetime in lifetimes:
            axes.broken_barh([(lifetime.lower, lifetime.upper - lifetime.lower)],
                             (placed.offsets[lifetime.id] / 2**20, lifetime.size / 2**20),
                             facecolor=f"C{lifetime.size % 10}", edgecolor="white", linewidth=0.2)
        axes.set_xlabel("time")
        axes.set_ylabel("address, MiB")
        axes.set_title(f"{name}: {format_bytes(placed.peak_bytes)}")
        return done()


def parser() -> Parser:
    """Return the parser of the command's flags."""
    found = Parser(
        prog="minidl lab placement", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog="The log is CSV with the header id,lower,upper,size. A buffer is live from lower up to, not including,\n"
               "upper (integers, any unit of time); its size is in bytes. Online strategies, which are the\n"
               "engine's placements, see the log in time order, deaths before births; offline ones (greedy-*) see all\n"
               "of it at once.\n\n"
               "exit code: 0; 2 if an argument or the log is wrong, or if no chosen strategy fits the capacity")
    found.add_argument("log", metavar="LOG", nargs="?", help="CSV file of lifetimes; x.log or x.json: of a program")
    found.add_argument("--from", dest="source", metavar="TRACE", help="a trace instead, like resnet50:220 or T.json")
    found.add_argument("--strategy", default="all", metavar="NAME",
                       help=f"all (default), {', '.join(REGISTRY.names())}")
    found.add_argument("--capacity", metavar="SIZE",
                       help="memory there is, like 16GiB, 512MB or 1000; unlimited by default")
    found.add_argument("--save", metavar="OFFSETS.csv",
                       help="write the log with a column offset (bytes) as the strategy of the lowest peak places it")
    found.add_argument("--over-time", metavar="FILE.csv", help="write height and holes over time, of each strategy")
    found.add_argument("--picture", metavar="FILE.png", help="draw addresses over time, of that of the lowest peak")
    found.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's own); return its exit code: 0, or 2 after one line about an error."""
    def story() -> int:
        _compare(parser().parse_args(argv))
        return 0

    return finish("minidl lab placement", story)
