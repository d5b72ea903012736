"""``minidl train``: trains a network; the same program as train.py."""

from collections.abc import Sequence

from minidl.cli.app import train


def main(words: Sequence[str]) -> int:
    """Train as the command line ``words`` says; return the exit code."""
    return train.main(list(words), name="minidl train")
