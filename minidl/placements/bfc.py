"""Best fit with coalescing, like TensorFlow's BFC allocator: a hole is split only if the rest is large enough.

TensorFlow keeps free chunks in bins, one for each doubling of the size, each sorted by size and address, and searches
from the request's bin upwards. Bins ascend, so it finds the best fit of all, the lowest of equal ones; the arena's
index finds the same. The difference to best fit is the split: a chunk of less than twice the request is given out
whole, unless 128 MiB or more of it would be wasted. There is no separate end for long-lived blocks, and no chunk is
ever moved. (tensorflow/core/common_runtime/bfc_allocator.cc, FindChunkPtr.)
"""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement

MOST_WASTED = 128 << 20  # bytes: a rest of at least this size is always split off


class Bfc(Placement):
    """TensorFlow's BFC placement (best fit with coalescing).

    ``most_wasted``: if at least so many bytes of a hole would be left, they are always split off; fewer only if they
    are not fewer than the request.
    """

    name = "bfc"
    compacts = False

    def __init__(self, *, most_wasted: int = MOST_WASTED) -> None:
        self.most_wasted = most_wasted

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        """Return the low end of the best fit, or all of that hole if its rest is too small to be split off."""
        chunk = holes[0]
        rest = chunk.size - nbytes
        return Place(chunk.offset, nbytes if rest >= min(nbytes, self.most_wasted) else chunk.size)
