"""``minidl lab COMMAND ...``: commands for experiments with traces and policies.
One module per command, imported on use."""

import sys
from collections.abc import Sequence

from minidl.cli.command import choose

COMMANDS = {
    "trace": ("minidl.cli.lab.trace", "look into a trace, run it again under policies and budgets, or make one"),
    "run": ("minidl.cli.lab.run", "a grid of traces, budgets, machines and policies; one table"),
    "fit": ("minidl.cli.lab.fit", "the largest batches that fit, and their speeds"),
    "placement": ("minidl.cli.lab.placement", "where buffers go: strategies on a log of lifetimes, or on a trace"),
    "curves": ("minidl.cli.lab.curves", "the loss and the score of run folders, as a picture (extra viz)"),
    "paper": ("minidl.cli.lab.paper", "published tables and figures, made again (in a checkout of minidl)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's own); return its exit code: 0, or 2 after one line about an error."""
    return choose("minidl lab", COMMANDS, list(sys.argv[1:] if argv is None else argv))
