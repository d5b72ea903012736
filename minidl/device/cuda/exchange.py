"""Exchanges between ranks on GPUs, as steps on one stream: copies, messages and additions.

A sum has the order of the slices, so that it has the bits of ``slices=k``. Each rank has a share of the elements:

  pack      a bucket of several tensors becomes one flat array for each slice; a tensor alone stays where it lies
  messages  send the other ranks' shares of this rank's slices, and receive this rank's share of all other slices
  add       slice after slice, by the kernel that adds slices on one device
  messages  send the sum of this rank's share to all, and receive the other shares (``sum_ranks`` alone)
  unpack    the flat sum to the outputs

The steps follow from shapes, and are made once for each signature. An array of elements in the memory format of its
output is the same on all ranks, whichever layout the inputs have.

Knows shapes, layouts and addresses relative to operands; no communicator and no stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from zlib import crc32

from minidl.device.cuda.memory_format import is_channels_last
from minidl.kernels.cuda.launch import WORKSPACE
from minidl.meta import ALIGNMENT, DType, Meta, aligned, meta, uint8
from minidl.parts.slice_rules import rows_of_rank, sizes_of

PIECE = 1 << 20  # elements of a share that are received at once: the workspace takes as many for each other slice
MOST_MESSAGES = 1024  # under way at once; NCCL takes 2,048


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements that follow each other in memory: ``size`` of them from element ``start`` of an operand's block on.
    operand: its number, outputs first; WORKSPACE for the workspace."""

    operand: int
    start: int
    size: int

    def part(self, start: int, stop: int) -> Stretch:
        """Return the elements [start, stop), as far as there are any."""
        start, stop = min(start, self.size), min(stop, self.size)
        return Stretch(self.operand, self.start + start, stop - start)


@dataclass(frozen=True, slots=True)
class Copied:
    """A step: the kernel of this name runs on stretches of blocks (result first), which ``metas`` describe."""

    kernel: str
    operands: tuple[int, ...]
    metas: tuple[Meta, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """A step: a copy of bytes."""

    to: Stretch
    origin: Stretch


@dataclass(frozen=True, slots=True)
class Sent:
    """A step: messages that are under way at once, each (peer, elements, True if this rank sends them)."""

    messages: tuple[tuple[int, Stretch, bool], ...]


Step = Copied | Moved | Sent


@dataclass(frozen=True)
class Exchange:
    """The steps of an exchange on one rank.

    itemsize   bytes of an element of a stretch
    workspace  bytes, equal on all ranks
    compared   a text by which ranks compare shapes and memory formats of all tensors"""

    steps: tuple[Step, ...]
    itemsize: int
    workspace: int
    compared: str


class _Maker:
    """Collects the steps of one exchange on rank ``rank`` of ``count``, all on elements of one dtype."""

    def __init__(self, dtype: DType, rank: int, count: int) -> None:
        self.dtype, self.rank, self.count = dtype, rank, count
        self.others = [peer for peer in range(count) if peer != rank]
        self.steps: list[Step] = []
        self.workspace = 0

    def scratch(self, size: int) -> Stretch:
        """Return ``size`` elements of the workspace."""
        start = self.workspace // self.dtype.itemsize
        self.workspace += aligned(size * self.dtype.itemsize)
        return Stretch(WORKSPACE, start, size)

    def send(self, messages: Sequence[tuple[int, Stretch, bool]]) -> None:
        """Add the messages that are not empty."""
        if found := tuple([message for message in messages if message[1].size]):
            self.steps.append(Sent(found))

    def to_all(self, parts: Sequence[Stretch]) -> list[tuple[int, Stretch, bool]]:
        """Return the messages by which each rank i sends ``parts[i]`` to all others."""
        return ([(peer, parts[self.rank], True) for peer in self.others]
                + [(peer, parts[peer], False) for peer in self.others])

    def unpack(self, outputs: Sequence[Meta], total: Stretch) -> None:
        """Add copies of the outputs from ``total``, elements in which one output follows the other."""
        start = 0
        for at, y in enumerate(outputs):
            if y.size:
                self.steps.append(Moved(Stretch(at, 0, y.size), total.part(start, start + y.size)))
            start += y.size

    def lay(self, to: Stretch, like: Meta, operand: int, x: Meta) -> None:
        """Copy a tensor to a stretch, in the memory format of ``like``."""
        if not x.size:
            return
        if same_format(x, like):
            self.steps.append(Moved(to, Stretch(operand, x.offset, x.size)))
        else:
            target = meta(x.shape, self.dtype, like.strides, to.start)
            self.steps.append(Copied("contiguous", (to.operand, operand), (target, x)))

    def add(self, to: Stretch, one: Stretch, other: Stretch) -> None:
        """Add up two stretches of one size."""
        flat = tuple([meta((x.size,), self.dtype, None, x.start) for x in (to, one, other)])
        self.steps.append(Copied("add", (to.operand, one.operand, other.operand), flat))

    def sum_shares(self, total: Stretch, shares: Sequence[Sequence[Stretch]]) -> None:
        """Write the sum of this rank's share to ``total``. shares[i][s]: rank i's share of this rank's slice s."""
        each, largest = len(shares[0]), max(of_rank[0].size for of_rank in shares)
        room = min(largest, PIECE)
        received = {(peer, s): self.scratch(room) for peer in self.others for s in range(each)}
        so_far = self.scratch(room)
        for start in range(0, largest, PIECE):
            stop = start + PIECE
            size = total.part(start, stop).size
            for s in range(each):
                self.send([(peer, shares[peer][s].part(start, stop), True) for peer in self.others]
                          + [(peer, received[peer, s].part(0, size), False) for peer in self.others])
            if not size:
                continue
            terms = [shares[peer][s].part(start, stop) if peer == self.rank else received[peer, s].part(0, size)
                     for peer in range(self.count) for s in range(each)]
            one = terms[0]
            for number, other in enumerate(terms[1:], start=2):
                to = total.part(start, stop) if number == len(terms) else so_far.part(0, size)
                self.add(to, one, other)
                one = to

    def made(self, compared: Sequence[Meta]) -> Exchange:
        """Return the exchange. compared: descriptions that must be equal on all ranks."""
        told = crc32(repr([(m.shape, m.strides) for m in compared]).encode())
        return Exchange(tuple(self.steps), self.dtype.itemsize, self.workspace, f"{told:08x}")


def reach(x: Meta) -> int:
    """Return the bytes from the start of a tensor's block to the end of its last element; 0 without elements."""
    last = x.offset + sum((d - 1) * s for d, s in zip(x.shape, x.strides, strict=True))
    return (last + 1) * x.dtype.itemsize if x.size else 0


def same_format(x: Meta, like: Meta) -> bool:
    """Return True if the elements of x follow each other in memory in the order of those of ``like``.
    like: a dense tensor whose shape may differ in the number of rows."""
    dense = like.strides[1:] == x.strides[1:] or all(
        d == 1 or s == t for d, s, t in zip(x.shape[1:], x.strides[1:], like.strides[1:], strict=True))
    return not x.size or dense and (not x.shape or x.shape[0] == 1 or x.strides[0] == like.strides[0])


def _whole(x: Meta, like: Meta) -> Meta:
    """Return x as dense, in the memory format of ``like``, which has as many dimensions and perhaps fewer rows."""
    return meta(x.shape, x.dtype, like.strides)


def sum_ranks(inputs: Sequence[Meta], outputs: Sequence[Meta], *, ranks: Any, each: int) -> Exchange:
    """Return the steps that write the sums of all slices to the outputs, which may be the tensors of the first slice.
    inputs: the tensors of each of the ``each`` slices that this rank holds."""
    made = len(outputs)
    maker = _Maker(outputs[0].dtype, ranks.rank, ranks.count)
    starts = [0, *accumulate(y.size for y in outputs)]
    size = starts[-1]
    alone = made == 1 and all(same_format(x, outputs[0]) for x in inputs)
    slices = [Stretch(made + s, inputs[s].offset, size) if alone else maker.scratch(size) for s in range(each)]
    total = Stretch(0, 0, size) if alone else slices[0]
    if not alone:
        for number, x in enumerate(inputs):
            at, place = number % made, slices[number // made]
            maker.lay(place.part(starts[at], starts[at + 1]), outputs[at], made + number, x)
    # Shares begin at multiples of the alignment, where kernels read wide.
    units = sizes_of(-(-size // ALIGNMENT), ranks.count)
    cuts = [min(size, ALIGNMENT * cut) for cut in (0, *accumulate(units))]
    shares = [(cuts[i], cuts[i + 1]) for i in range(ranks.count)]
    sums = [total.part(*share) for share in shares]
    maker.sum_shares(sums[ranks.rank], [[x.part(*share) for x in slices] for share in shares])
    maker.send(maker.to_all(sums))
    if not alone:
        maker.unpack(outputs, total)
    return maker.made(outputs)


def sum_rows(inputs: Sequence[Meta], outputs: Sequence[Meta], *, ranks: Any, each: int) -> Exchange:
    """Return the steps that write this rank's rows of the sums of all slices to the outputs."""
    made = len(outputs)
    maker = _Maker(outputs[0].dtype, ranks.rank, ranks.count)
    cuts = [[rows_of_rank(x.shape[0], each * ranks.count, i, ranks.count) for x in inputs[:made]]
            for i in range(ranks.count)]
    row = [x.size // x.shape[0] for x in inputs[:made]]
    sizes = [sum(step * (b - a) for step, (a, b) in zip(row, of_rank, strict=True)) for of_rank in cuts]
    alone = made == 1 and all(same_format(x, outputs[0]) for x in inputs)
    shares: list[list[Stretch]] = []
    for of_rank, size in zip(cuts, sizes, strict=True):
        if alone:
            ((a, b),) = of_rank
            shares.append([Stretch(1 + s, x.offset + a * row[0], (b - a) * row[0]) for s, x in enumerate(inputs)])
            continue
        shares.append([maker.scratch(size) for _ in range(each)])
        for s, place in enumerate(shares[-1]):
            start = 0
            for at, (a, b) in enumerate(of_rank):
                x = inputs[s * made + at]
                rows = meta((b - a, *x.shape[1:]), x.dtype, x.strides, x.offset + a * x.strides[0])
                maker.lay(place.part(start, start + rows.size), outputs[at], made + s * made + at, rows)
                start += rows.size
    total = Stretch(0, 0, sizes[ranks.rank]) if alone else shares[ranks.rank][0]
    maker.sum_shares(total, shares)
    if not alone:
        maker.unpack(outputs, total)
    return maker.made([_whole(x, y) for x, y in zip(inputs, outputs, strict=False)])


def gather_ranks(inputs: Sequence[Meta], outputs: Sequence[Meta], *, ranks: Any, rows: tuple[int, ...]) -> Exchange:
    """Return the steps that write the rows of all ranks to the output, in rank order. rows: how many each rank has."""
    (x,), (y,) = inputs, outputs
    maker = _Maker(y.dtype, ranks.rank, ranks.count)
    row, starts = y.size // max(1, sum(rows)), [0, *accumulate(rows)]
    parts = [Stretch(0, row * a, row * count) for a, count in zip(starts, rows, strict=False)]
    maker.lay(parts[ranks.rank], y, 1, x)
    maker.send(maker.to_all(parts))
    return maker.made(outputs)


def gather_rows(inputs: Sequence[Meta], outputs: Sequence[Meta], *, ranks: Any, slices: int) -> Exchange:
    """Return the steps that write to each tensor the rows that the other ranks hold, and send them those of this rank.
    The tensors may have several dtypes: their stretches are of bytes."""
    maker = _Maker(uint8, ranks.rank, ranks.count)
    messages: list[tuple[int, Stretch, bool]] = []
    for number, x in enumerate(inputs):
        assert x.contiguous or is_channels_last(x), f"the rows of {x} do not follow each other"
        row = x.nbytes // x.shape[0]
        parts = [Stretch(number, x.offset * x.dtype.itemsize + a * row, (b - a) * row)
                 for a, b in (rows_of_rank(x.shape[0], slices, i, ranks.count) for i in range(ranks.count))]
        messages += maker.to_all(parts)
        if len(messages) > MOST_MESSAGES - 2 * ranks.count:
            maker.send(messages)
            messages = []
    maker.send(messages)
    return maker.made(inputs)


MAKERS: dict[str, Callable[..., Exchange]] = {
    "sum_ranks": sum_ranks, "sum_rows": sum_rows, "gather_ranks": gather_ranks, "gather_rows_": gather_rows}
