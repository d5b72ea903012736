"""First fit: the lowest hole that is large enough, from its low end; what lives long at the top of the highest."""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement


class FirstFit(Placement):
    """Keeps blocks low, and one large hole at the top; small holes at the low end get smaller."""

    name = "first-fit"

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        """At the low end of the lowest hole; with ``high`` at the top of the highest."""
        if high:
            return Place(max(holes).end - nbytes, nbytes)
        return Place(min(holes).offset, nbytes)
