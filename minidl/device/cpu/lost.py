"""The set of bytes that hold no value, because the kernel that should have written them failed or read such bytes.

The outputs of a failed call are lost, and so is everything computed from them. A copy of lost bytes is lost; a kernel
that overwrites a range ends its loss. Knows places; no kernel, no time and no storage.
"""

from collections.abc import Iterable, Sequence
from threading import Lock

from minidl.device.clock import Extents
from minidl.device.contract import Place

# These overwrite their target without reading it. Other in-place operations leave the target unchanged when they fail.
OVERWRITE = frozenset({"copy_", "fill_", "normal_", "uniform_", "upload_"})


def extent(at: Place) -> tuple[int, int]:
    """Return the first byte of a tensor and the byte after its last, as offsets in the arena."""
    start, meta = at
    first = start + meta.offset * meta.dtype.itemsize
    if not meta.size:
        return first, first
    steps = 1 + sum((d - 1) * s for d, s in zip(meta.shape, meta.strides, strict=True))
    return first, first + steps * meta.dtype.itemsize


class Ranges:
    """A set of bytes, as ranges (start, stop)."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        """Add the bytes from ``start`` to before ``stop``."""
        if start < stop:
            self._ranges.append((start, stop))

    def discard(self, start: int, stop: int) -> None:
        """Remove the bytes from ``start`` to before ``stop``."""
        kept = []
        for a, b in self._ranges:
            if b <= start or stop <= a:
                kept.append((a, b))
                continue
            kept += [piece for piece in ((a, start), (stop, b)) if piece[0] < piece[1]]
        self._ranges = kept

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of the set's ranges between two offsets."""
        return [(max(a, start), min(b, stop)) for a, b in self._ranges if a < stop and start < b]


class Lost:
    """The bytes of an arena and of a host pool that hold no value. The workers of all streams may call it at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._arena, self._host = Ranges(), Ranges()

    def reads(self, op_name: str, inputs: Sequence[Place]) -> bool:
        """Return True if a kernel would read lost bytes."""
        read = inputs[1:] if op_name in OVERWRITE else inputs
        with self._lock:
            return any(self._arena.within(*extent(at)) for at in read)

    def add(self, outputs: Iterable[Place]) -> None:
        """Mark a call's outputs as lost: they were not written."""
        with self._lock:
            for at in outputs:
                self._arena.add(*extent(at))

    def written(self, op_name: str, outputs: Iterable[Place], inputs: Sequence[Place]) -> None:
        """Unmark the bytes that a kernel has written."""
        with self._lock:
            for at in (*outputs, *(inputs[:1] if op_name in OVERWRITE else ())):
                self._arena.discard(*extent(at))

    def moved(self, to: int, origin: int, nbytes: int) -> None:
        """Mark the target bytes of a copy within the arena as lost where its source bytes are lost, and only there."""
        with self._lock:
            found = self._arena.within(origin, origin + nbytes)
            self._arena.discard(to, to + nbytes)
            for start, stop in found:
                self._arena.add(start - origin + to, stop - origin + to)

    def copied(self, host: Extents, offset: int, *, out: bool) -> None:
        """Mark the target bytes of a copy to the host (``out``), or back, as lost exactly where its source is lost."""
        with self._lock:
            for at, size in host:
                (source, origin), (target, to) = (self._arena, offset), (self._host, at)
                if not out:
                    (source, origin), (target, to) = (target, to), (source, origin)
                found = source.within(origin, origin + size)
                target.discard(to, to + size)
                for start, stop in found:
                    target.add(start - origin + to, stop - origin + to)
                offset += size

    def on_device(self, start: int, nbytes: int) -> bool:
        """Return True if any of these bytes of the arena is lost."""
        with self._lock:
            return bool(self._arena.within(start, start + nbytes))

    def on_host(self, host: Extents) -> bool:
        """Return True if any of these bytes of the host pool is lost."""
        with self._lock:
            return any(self._host.within(at, at + size) for at, size in host)
