"""Missing calls that hang together, as a union-find forest: what ``neighbourhood`` adds up. Knows nothing else."""

from __future__ import annotations


class Region:
    """Device seconds of missing calls that hang together; or, once united with another, where these are counted."""

    __slots__ = ("into", "seconds")

    def __init__(self) -> None:
        self.into: Region | None = None
        self.seconds = 0.0

    def root(self) -> Region:
        """The region that this one has become part of, or itself."""
        region = self
        while region.into is not None:
            if region.into.into is not None:
                region.into = region.into.into  # halves the path for those who come after
            region = region.into
        return region

    def unite(self, other: Region) -> None:
        """Make both one."""
        mine, theirs = self.root(), other.root()
        if mine is not theirs:
            mine.into = theirs
            theirs.seconds += mine.seconds
