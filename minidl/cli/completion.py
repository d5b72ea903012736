"""``minidl completion SHELL``: prints a script with which a shell completes the commands and their flags.

    minidl completion bash > ~/.local/share/bash-completion/completions/minidl

The script is generated from the commands' own parsers. Generating it needs the package shtab (extra ``completion``);
using it needs nothing.
"""

import argparse
from collections.abc import Sequence

from minidl.cli import pytorch
from minidl.cli.app.flags import all_flags
from minidl.cli.command import Parser, finish
from minidl.cli.lab import curves, fit, placement, run, trace
from minidl.cli.view import own_flags
from minidl.errors import UserError

SHELLS = ("bash", "zsh", "tcsh")
LAB = {"trace": trace.parser, "run": run.parser, "fit": fit.parser, "placement": placement.parser,
       "curves": curves.parser}


def all_commands() -> argparse.ArgumentParser:
    """Return one parser with all commands as subparsers. Flags without a help text are not offered for completion."""
    whole = argparse.ArgumentParser(prog="minidl")
    commands = whole.add_subparsers(dest="command")
    for name, parents in {"train": (all_flags(),), "explain": (all_flags(),), "view": (all_flags(), own_flags()),
                          "fit": (fit.parser(),), "torch": (pytorch.parser(),)}.items():
        commands.add_parser(name, help=name, parents=parents, add_help=False, conflict_handler="resolve")
    lab = commands.add_parser("lab", help="lab").add_subparsers(dest="lab")
    for name, parser in LAB.items():
        lab.add_parser(name, help=name, parents=[parser()], add_help=False, conflict_handler="resolve")
    lab.add_parser("paper", help="paper")  # a checkout alone has what its flags name
    for name in ("compare", "calibrate", "convert", "models"):
        commands.add_parser(name, help=name)
    commands.add_parser("completion", help="completion").add_argument("shell", choices=SHELLS)
    return whole


def main(words: Sequence[str]) -> int:
    """Print the script for the shell that ``words`` names; return the exit code."""
    parser = Parser(prog="minidl completion", description="A script by which a shell completes minidl's commands.")
    parser.add_argument("shell", metavar="bash|zsh|tcsh")

    def story() -> int:
        shell = parser.parse_args(list(words)).shell
        if shell not in SHELLS:
            raise UserError(f"no completion for {shell!r}; there is one for {', '.join(SHELLS)}")
        try:
            import shtab
        except ImportError:
            raise UserError('completion takes shtab: pip install "minidl[completion]"') from None
        print(shtab.complete(all_commands(), shell))
        return 0

    return finish("minidl completion", story)
