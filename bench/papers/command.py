"""``minidl lab paper``: tables and figures that others have published, made again, their numbers beside ours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.papers import PAGES
from bench.papers.age import age
from bench.papers.page import SOLVER_S, is_own
from minidl.cli.command import Parser, finish
from minidl.cli.lab import kinds
from minidl.outside.writing import require_place

FOLDER = "docs/reproduction"


def parser() -> Parser:
    """Make the parser of the command's flags."""
    found = Parser(prog="minidl lab paper", description=__doc__,
                   formatter_class=argparse.RawTextHelpFormatter)
    known = "\n".join(f"{page.name:10} {page.title}" for page in PAGES.values())
    found.add_argument("pages", nargs="+", choices=[*PAGES, "all", "check"], metavar="PAGE",
                       help=f"{known}\nall        all of them\ncheck      which are older than the code that they show")
    found.add_argument("--out", default=FOLDER, metavar="DIR", help=f"where pages are written ({FOLDER})")
    found.add_argument("--quick", action="store_true", help="small parts of them, to see that all of it works")
    found.add_argument("--solver", type=kinds.duration, default=SOLVER_S, metavar="SECONDS",
                       help=f"that each integer program may take ({SOLVER_S:g})")
    found.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    return found


def story(arguments: argparse.Namespace) -> int:
    """Make the pages that were asked for, or print how old they are."""
    if "check" in arguments.pages:
        others = sorted(path.stem for path in Path(arguments.out).glob("*.md") if path.stem not in PAGES)  # grids
        for name in (*PAGES, *others):
            shows = PAGES[name].shows if name in PAGES else ()
            print(f"{name:10} {age(arguments.out, name, shows)}")
        return 0
    names = list(PAGES) if "all" in arguments.pages else list(dict.fromkeys(arguments.pages))
    for name in names:
        if Path(arguments.out).is_dir():
            require_place(Path(arguments.out) / f"{name}.md", is_own, force=arguments.force)
    for name in names:
        print(PAGES[name].write(arguments.out, quick=arguments.quick, force=arguments.force,
                                solver_s=arguments.solver), flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 after one line about a mistake in the arguments."""
    return finish("minidl lab paper", lambda: story(parser().parse_args(argv)))
