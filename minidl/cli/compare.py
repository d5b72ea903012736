"""``minidl compare``: prints two saved plans side by side."""

from collections.abc import Sequence

from minidl.cli.command import Parser, finish
from minidl.errors import UserError
from minidl.plan.formats import read_plan
from minidl.report.compare import comparison

ROWS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison of two plans; return the exit code: 2 if they cannot be read or compared."""
    parser = Parser(prog="minidl compare", description="Compare two saved plans.")
    parser.add_argument("a", metavar="A.json")
    parser.add_argument("b", metavar="B.json")
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"differences to list (default: {ROWS})")

    def story() -> int:
        options = parser.parse_args(arguments)
        if options.rows < 0:
            raise UserError(f"--rows: must be a whole number of at least 0, not {options.rows}")
        print(comparison(read_plan(options.a), read_plan(options.b), rows=options.rows))
        return 0

    return finish("minidl compare", story)
