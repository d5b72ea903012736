"""``minidl COMMAND ...``, which is ``python -m minidl COMMAND ...``: one line a command, loaded when it is named."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module

from minidl import __version__
from minidl.cli.command import finish
from minidl.errors import UserError

# Command -> where its main(words) is, and what it does.
COMMANDS = {
    "train": ("minidl.cli.train", "train a network in as much memory as you allow it"),
    "view": ("minidl.cli.view", "a page that shows the memory of a step"),
    "explain": ("minidl.cli.explain", "train, and tell the plan: why each tensor leaves, what it costs"),
    "compare": ("minidl.cli.compare", "two saved plans beside each other"),
    "fit": ("minidl.cli.lab.fit", "who can train what: largest batches and their speeds"),
    "torch": ("minidl.cli.pytorch", "a PyTorch program in fewer bytes, as it is"),
    "lab": ("minidl.cli.lab", "experiments: traces, grids, placements, the paper's pages"),
    "calibrate": ("minidl.cli.calibrate", "measure this machine as a device"),
    "convert": ("minidl.cli.convert", "make a safetensors file of weights in another format"),
    "models": ("minidl.cli.models", "the networks that are known by name"),
    "completion": ("minidl.cli.completion", "a script by which a shell completes these commands and their flags"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (None: this program's own); returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        command: Callable[[Sequence[str]], int] = import_module(COMMANDS[words[0]][0]).main
        return command(words[1:])

    def story() -> int:
        if words[:1] == ["--version"]:
            print(f"minidl {__version__}")
            return 0
        if words and words[0] not in ("-h", "--help"):
            near = get_close_matches(words[0], COMMANDS, n=1)
            raise UserError(f"no command {words[0]!r}; "
                            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"))
        print("minidl COMMAND ...   (--help after a command says more; --version)\n")
        for name, (_, what) in COMMANDS.items():
            print(f"  {name:10} {what}")
        return 0

    return finish("minidl", story)


def console() -> int:
    """The console script."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command heeds it: Ctrl-C while modules load is no error
    return main()


if __name__ == "__main__":
    sys.exit(console())
