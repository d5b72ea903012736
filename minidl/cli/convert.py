"""``minidl convert``: converts a file of weights, such as a PyTorch checkpoint, to the safetensors format."""

from collections.abc import Sequence

from minidl.cli.command import Parser, finish
from minidl.models.convert import PYTORCH, convert


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert a file as the command line says; return the exit code: 2 after an error, which is printed."""
    parser = Parser(prog="minidl convert", description="Make a safetensors file of weights.")
    parser.add_argument("source", metavar="IN", help=f"a file of PyTorch ({', '.join(PYTORCH)}) or NumPy (.npz)")
    parser.add_argument("target", metavar="OUT.safetensors")
    parser.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")

    def story() -> int:
        options = parser.parse_args(arguments)
        count = convert(options.source, options.target, force=options.force)
        print(f"{options.target}: {count} arrays")
        return 0

    return finish("minidl convert", story)
