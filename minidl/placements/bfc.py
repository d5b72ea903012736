"""Best fit with coalescing, as TensorFlow's BFC allocator places: a hole is split only if the rest is worth it.

TensorFlow keeps free chunks in bins, one for each doubling of the size, each sorted by size and address, and searches
from the bin of the request upwards. Since bins ascend, what it finds is the best fit of all, the lowest of equals; the
bins make that search fast, and the arena's index does so here. What differs from best fit is the split: a chunk of less
than twice the request goes out whole, unless 128 MiB or more of it would be wasted. There is one end, and no chunk is
ever moved. (tensorflow/core/common_runtime/bfc_allocator.cc, FindChunkPtr.)
"""

from collections.abc import Sequence

from minidl.placements.placement import Hole, Place, Placement

MOST_WASTED = 128 << 20  # bytes: a rest of this size is always split off


class Bfc(Placement):
    """``most_wasted``: bytes beyond a request from which on the rest of a chunk is split off, however large the request
    is; smaller ones are if they are at least as large as the request."""

    name = "bfc"
    compacts = False

    def __init__(self, *, most_wasted: int = MOST_WASTED) -> None:
        self.most_wasted = most_wasted

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        """At the low end of the best fit, and all of it if the rest is not worth a chunk of its own."""
        chunk = holes[0]
        rest = chunk.size - nbytes
        return Place(chunk.offset, nbytes if rest >= min(nbytes, self.most_wasted) else chunk.size)
