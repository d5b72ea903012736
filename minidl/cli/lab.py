"""``minidl lab``: the laboratory."""

from __future__ import annotations

from collections.abc import Sequence

from minidl.lab import placement


def main(words: Sequence[str]) -> int:
    """Carry out an experiment; returns the exit code."""
    return placement.main(list(words))
