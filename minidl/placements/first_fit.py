"""First fit: the low end of the lowest hole that is large enough; long-lived blocks at the top of the highest hole."""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement


class FirstFit(Placement):
    """First fit. It keeps blocks low and one large hole at the top; holes at the low end become small."""

    name = "first-fit"

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        """Return the low end of the lowest hole, or with ``high`` the top of the highest hole."""
        if high:
            return Place(max(holes).end - nbytes, nbytes)
        return Place(min(holes).offset, nbytes)
