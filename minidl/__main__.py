"""The command line ``minidl COMMAND ...`` or ``python -m minidl COMMAND ...``: finds a command's module and runs it."""

import signal
import sys
from collections.abc import Sequence

from minidl import __version__
from minidl.cli.command import choose, finish

# Command -> the module that has its main(words), and its line in the help.
COMMANDS = {
    "train": ("minidl.cli.train", "train a network in as much memory as you allow it"),
    "view": ("minidl.cli.view", "a page that shows the memory of a step"),
    "explain": ("minidl.cli.explain", "train, and tell the plan: why each tensor leaves, what it costs"),
    "compare": ("minidl.cli.compare", "two saved plans beside each other"),
    "fit": ("minidl.cli.lab.fit", "the largest batches that fit, and their speeds"),
    "torch": ("minidl.cli.pytorch", "a PyTorch program in fewer bytes, as it is"),
    "lab": ("minidl.cli.lab", "experiments: traces, grids, placements, the paper's pages"),
    "calibrate": ("minidl.cli.calibrate", "measure this machine as a device"),
    "convert": ("minidl.cli.convert", "make a safetensors file of weights in another format"),
    "models": ("minidl.cli.models", "the networks that are known by name"),
    "completion": ("minidl.cli.completion", "a script by which a shell completes these commands and their flags"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; returns the exit code. arguments: its words; None for those of this process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] != ["--version"]:
        return choose("minidl", COMMANDS, words)

    def story() -> int:
        print(f"minidl {__version__}")
        return 0

    return finish("minidl", story)


def console() -> int:
    """Run as the installed script ``minidl``; returns the exit code. Ctrl-C while modules load ends it silently."""
    # Until the command heeds it, Ctrl-C while modules load is no error. A process that ignores it goes on ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main()


if __name__ == "__main__":
    sys.exit(console())
