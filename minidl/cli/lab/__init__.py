"""``minidl lab COMMAND ...``: one file for each command, loaded when a command line names it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import minidl
from minidl.cli.command import finish
from minidl.errors import UserError

COMMANDS = {
    "trace": "look into a trace, run it again under policies and budgets, or make one",
    "run": "a grid of traces, budgets, machines and policies; one table",
    "fit": "who can train what: largest batches and their speeds",
    "placement": "where buffers go: strategies on a log of lifetimes, or on a trace",
    "paper": "tables and figures that others have published, made again (in a checkout of minidl)",
}
CHECKOUT = Path(minidl.__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code: 0, or 2 after one line about what the user got wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        command = _papers if words[0] == "paper" else import_module(f"minidl.cli.lab.{words[0]}").main
        code: int = command(words[1:])
        return code

    def story() -> int:
        if words and words[0] not in ("-h", "--help"):
            near = get_close_matches(words[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f" among {', '.join(COMMANDS)}"
            raise UserError(f"no command {words[0]!r}{hint}")
        print("minidl lab COMMAND ...; each has --help\n")
        for name, what in COMMANDS.items():
            print(f"  {name:10} {what}")
        return 0

    return finish("minidl lab", story)


def _papers(words: Sequence[str]) -> int:
    """``minidl lab paper``, which is a part of the checkout and not of the package."""
    if not (CHECKOUT / "bench" / "papers").is_dir():
        def refuse() -> int:
            raise UserError("paper is no part of the installed package; a checkout of minidl has it (pip install -e .)")
        return finish("minidl lab paper", refuse)
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    main: Callable[[Sequence[str]], int] = import_module("bench.papers.command").main
    return main(words)
