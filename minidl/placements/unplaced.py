"""The placement of a memory without addresses, for simulated devices alone (``memory.bytes.byte_count``)."""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement


class Unplaced(Placement):
    """Places nothing: an allocation succeeds if enough bytes are free, as in studies that know no addresses."""

    name = "none"
    compacts = False
    addresses = False

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place | None:
        """Return the low end of the smallest hole."""
        return Place(holes[0].offset, nbytes) if holes else None
