"""Best fit, the default: the smallest hole that is large enough, the lowest of equals, from its low end.

What lives long goes to the top of the highest hole, so that the two kinds grow towards each other.
"""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement


class BestFit(Placement):
    """The arena finds these places by itself, without a list of holes; this is what it must find."""

    name = "best-fit"

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        """At the low end of the best fit; with ``high`` at the top of the highest hole."""
        if high:
            return Place(max(holes).end - nbytes, nbytes)
        return Place(holes[0].offset, nbytes)
