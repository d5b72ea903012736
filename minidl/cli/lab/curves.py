"""``minidl lab curves``: draws the loss of every step of run folders, and the score on test data, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from minidl.cli.command import Parser, finish
from minidl.lab import curves
from minidl.lab.drawing import is_png
from minidl.outside.writing import write_whole


def parser() -> Parser:
    """Return the parser of the command's flags."""
    found = Parser(prog="minidl lab curves", description=__doc__)
    found.add_argument("runs", nargs="+", metavar="RUN", help="a folder that minidl train --run-dir RUN wrote")
    found.add_argument("--out", default="curves.png", metavar="FILE.png", help="where the picture is written "
                                                                               "(default: curves.png)")
    found.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's own); return its exit code: 0, or 2 after one line about an error."""
    def story() -> int:
        options = parser().parse_args(argv)
        write_whole(options.out, curves.picture({run: curves.rows_of(Path(run)) for run in options.runs}), is_png,
                    force=options.force)
        print(f"wrote {options.out}")
        return 0

    return finish("minidl lab curves", story)
