"""Cuts convolutions into tasks, and computes the size of a worker's buffer in elements.

Everything follows from the shapes and a few limits, never from the number of workers.
"""

from dataclasses import dataclass
from functools import cached_property

from minidl.kernels.cpu import cuts
from minidl.kernels.cpu.cuts import even, pieces, up
from minidl.kernels.cpu.windows import Pair
from minidl.meta import Shape

TASKS = 4  # the least number of tasks of all groups, if the shape allows it: enough for a few cores
TILES, TILE_BLOCK = 144, 256  # of a Winograd task: tiles, and channels of the result
TILE_CHUNK = 32  # channels that a Winograd task sums at a time
GROUP = 8  # channels whose patches are gathered at a time


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts of one convolution.

    ``numbers``: sizes of the pieces (see im2col.py, winograd.py); tasks of a group; elements of a worker's buffer.
    """

    numbers: Shape
    tasks: int
    buffer: int


@dataclass(frozen=True)
class ConvolutionCut:
    """How convolution ``op`` is cut into tasks, from shapes alone: x [N, C, H, W], w [K, C, R, S], y [N, K, P, Q].
    C and K are the channels of one of ``groups``. half: True for 16-bit floats. limits: bytes of a buffer, rows of a
    chunk, pixels of a tile, then Winograd's least channels to sum, channels of the result, and tiles."""

    op: str
    x: Shape
    w: Shape
    y: Shape
    stride: Pair
    padding: Pair
    groups: int
    itemsize: int  # of the dtype that it computes in
    half: bool
    limits: Shape

    @cached_property
    def pixels(self) -> int:
        """The number of output pixels of the batch, N P Q."""
        return self.y[0] * self.area

    @cached_property
    def area(self) -> int:
        """The number of output pixels of an image, P Q."""
        return self.y[2] * self.y[3]

    @cached_property
    def taps(self) -> int:
        """The number of positions in the window, R S."""
        return self.w[2] * self.w[3]

    @property
    def tasks(self) -> int:
        """The least number of tasks of a group, if the shape allows it."""
        return pieces(TASKS, self.groups)

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts for several workers, each with a buffer of its own."""
        return self._tiles(TILES, TILE_BLOCK) if self.winograd else self._columns()

    @cached_property
    def least(self) -> Cuts:
        """The cuts for one worker alone: a smaller buffer, as long as the order of every sum stays the same."""
        return self._tiles(self.panel, 4 * self.lanes) if self.winograd else self._columns()

    @property
    def deep(self) -> int:
        """The number of channels over which each element of the result is a sum."""
        return self.w[1] if self.op == "conv2d" else self.w[0]

    @property
    def target(self) -> Shape:
        """The shape of the result: y, or x for an input's gradient; not meant for a weight's gradient."""
        return self.y if self.op == "conv2d" else self.x

    @cached_property
    def winograd(self) -> bool:
        """True if Winograd is faster: few partly empty 2 x 2 tiles, and enough channels to pay for the transforms."""
        if self.op == "conv2d_wgrad" or self.w[2:] != (3, 3) or self.stride != (1, 1) or max(self.padding) > 2:
            return False
        n, wide, height, width = self.target
        inputs, outputs, tiles = self.limits[3:]
        if self.op == "conv2d_dgrad":  # its alternative has to scatter columns, so Winograd pays off earlier
            outputs = pieces(outputs, 2)
        each = pieces(height, 2) * pieces(width, 2)
        return self.deep >= inputs and wide >= outputs and n * each >= tiles and 9 * height * width >= 32 * each

    def _tiles(self, most: int, widest: int) -> Cuts:
        n, wide, height, width = self.target
        tiles = n * pieces(height, 2) * pieces(width, 2)
        tile = min(tiles, up(even(tiles, most), self.lanes))
        block = up(even(wide, widest), self.lanes)
        block = min(block, max(2 * self.lanes, up(pieces(wide, pieces(self.tasks, pieces(tiles, tile))), self.lanes)))
        chunk, ld = min(TILE_CHUNK, self.deep), up(tile, self.lanes)
        return Cuts((tile, chunk, block), pieces(tiles, tile) * pieces(wide, block),
                    16 * (max(self.lanes, GROUP * ld) + block * ld + chunk * (up(tile, self.panel) + block)))

    def _columns(self) -> Cuts:
        return {"conv2d": self._fprop, "conv2d_dgrad": self._dgrad, "conv2d_wgrad": self._wgrad}[self.op]()

    def _fprop(self) -> Cuts:
        k, c = self.w[:2]
        depth, most = self.limits[1:3]
        chunk = even(c, max(1, depth // self.taps))
        if not self.half and self.area * 9 >= 8 * up(self.area, self.lanes):  # few vectors are partly empty
            tile = min(self.area, up(even(self.area, most), self.lanes))
            images, tiles, ld = 1, self.y[0] * pieces(self.area, tile), 0
        else:
            tile = min(self.pixels, up(max(self.panel, min(most, pieces(self.pixels, 2 * self.tasks))), self.lanes))
            images, tiles, ld = 2, pieces(self.pixels, tile), up(tile, self.lanes)
        block = even(k, max(1, up(pieces(k, pieces(self.tasks, tiles)), 8)))
        weights = block * chunk * self.taps if self.half else 0
        return Cuts((tile, images, chunk, block, up(tile, self.lanes), weights, 0), tiles * pieces(k, block),
                    weights + block * ld + chunk * self.taps * up(tile, self.panel))

    def _dgrad(self) -> Cuts:
        k, c = self.w[:2]
        n, _, p, q = self.y
        buffer_bytes, depth, most = self.limits[:3]
        most = min(most, max(self.panel, buffer_bytes // (self.itemsize * k)))
        images = max(1, min(n, most // self.area))
        rows = p if images > 1 else min(p, max(1, most // q))
        rows = even(p, rows)
        tiles = pieces(n, images)
        block = even(c, pieces(c, pieces(self.tasks, tiles)))
        plane = images * self.x[2] * self.x[3]
        if self.half:  # the float32 results of a block must fit a core's own cache
            block = even(c, min(block, max(1, buffer_bytes // (self.itemsize * plane))))
        chunk = even(block, max(1, depth // self.taps))
        width = images * rows * q
        same = self.w[2:] == (1, 1) == self.stride and self.padding == (0, 0) and images == 1
        columns = 0 if same else chunk * self.taps * up(width, self.lanes)
        weights = k * (block if same else chunk * self.taps) if self.half else 0
        results = block * plane if self.half else 0
        return Cuts((rows, images, chunk, block, up(width, self.lanes), weights, results), tiles * pieces(c, block),
                    weights + results + k * up(width, self.panel) + columns)

    def _wgrad(self) -> Cuts:
        k, c = self.w[:2]
        depth, most = self.limits[1:3]
        tile = min(self.pixels, most)
        chunk = even(c, max(1, min(depth // self.taps, max(pieces(64, self.taps), pieces(c, self.tasks)))))
        block = min(k, up(pieces(k, pieces(self.tasks, pieces(c, chunk))), 2 * self.lanes))
        m = chunk * self.taps
        return Cuts((tile, 1, chunk, block, up(tile, self.lanes), 0, 0), pieces(k, block) * pieces(c, chunk),
                    m * up(block, self.lanes) + up(block, self.panel) * up(tile, self.lanes)
                    + m * up(tile, self.lanes))

    @property
    def lanes(self) -> int:
        """The elements of a vector register of this processor."""
        return cuts.lanes(self.itemsize)

    @property
    def panel(self) -> int:
        """The columns of a panel of a matrix product (product.py): three vector registers."""
        return cuts.panel(self.itemsize)
