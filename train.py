"""Train a network in as much memory as you allow it: model, device, budget, policy, loop, report.

    python train.py --model resnet50 --batch 1014
    python train.py --model lenet --data digits --memory-budget 50%

Exit code 2 means that something asked for cannot be done, 130 and 143 that a signal ended it. See docs/train.md; the
story itself, from the flags to the closing summary, is ``minidl.cli.app.train``, and the networks are those of
``minidl.models``. ``minidl train`` is the same, wherever minidl is installed.
"""

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as a command line says (None: this program's own); returns the exit code."""
    from minidl.cli.app import train

    return train.main(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the program heeds it: Ctrl-C while modules load is no error
    sys.exit(main())
