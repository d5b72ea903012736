"""Best fit, the default: the low end of the smallest hole that is large enough; of equal holes, the lowest.

Long-lived blocks go to the top of the highest hole, so that short-lived and long-lived blocks grow towards each other.
"""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement


class BestFit(Placement):
    """Best fit. The arena finds these addresses itself, without a list of holes; this class is the reference."""

    name = "best-fit"

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        """Return the low end of the best fit, or with ``high`` the top of the highest hole."""
        if high:
            return Place(max(holes).end - nbytes, nbytes)
        return Place(holes[0].offset, nbytes)
