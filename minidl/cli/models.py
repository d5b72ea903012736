"""``minidl models``: prints the names of all networks that come with minidl."""

from collections.abc import Sequence

from minidl import models
from minidl.cli.command import Parser, finish


def main(words: Sequence[str]) -> int:
    """Print the names of all networks; return the exit code."""
    def story() -> int:
        Parser(prog="minidl models", description="The networks that --model knows by name.").parse_args(list(words))
        print(models.listing())
        return 0

    return finish("minidl models", story)
