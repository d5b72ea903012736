"""A spill file: it continues host memory on a disk. It knows offsets and bytes, no tensors.

The file is unlinked, so it disappears with the process. Its space is allocated when it is made, so a disk without room
is refused before anything is computed. Every piece begins on a page. A checksum of each piece is kept in memory and
checked when the piece is read, so a disk that changes a bit is noticed.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from minidl.device.clock import COPY_OUT, Extents, VirtualClock
from minidl.device.profiles import Profile
from minidl.errors import DeviceError, UserError
from minidl.outside.units import format_bytes
from minidl.plan.costs import DiskCosts

if TYPE_CHECKING:
    import numpy as np

PAGE = 4096  # bytes
MOST_AT_ONCE = 1 << 30  # bytes of one call of the system, which takes no more than 2 GiB


@dataclass(frozen=True, slots=True)
class Spill:
    """Where host memory continues: a folder, and the size in bytes (whole pages) of the spill file in it."""

    folder: str
    nbytes: int


class SpillFile:
    """An unlinked file of a fixed size. Raises UserError if it cannot be made, or if there is no room for it.

    A piece is read as a whole, by the offset at which it was written.
    """

    def __init__(self, spill: Spill) -> None:
        self.folder = spill.folder
        self._sums: dict[int, tuple[int, int]] = {}  # where a piece begins -> its bytes, its checksum
        try:
            self._file = _anonymous(spill.folder)
        except OSError as error:
            raise UserError(f"cannot spill to {spill.folder}: {error.strerror}") from None
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            os.posix_fallocate(self._file, 0, max(spill.nbytes, 1))
        except OSError as error:
            self.close()
            free = ""
            with suppress(OSError):
                state = os.statvfs(spill.folder)
                free = f": {format_bytes(state.f_bavail * state.f_frsize)} free"
            why = free if error.errno == errno.ENOSPC else f": {error.strerror}"
            raise UserError(f"cannot spill {format_bytes(spill.nbytes)} to {spill.folder}{why}") from None

    def write(self, at: int, piece: np.ndarray) -> None:
        """Write a whole piece at an offset. Raises DeviceError if the disk fails."""
        view = piece.data
        self._sums[at] = len(view), crc32(view)
        done = 0
        while done < len(view):
            try:
                written = os.pwrite(self._file, view[done:done + MOST_AT_ONCE], at + done)
            except OSError as error:
                raise self._failed("write", len(view) - done, at + done, error.strerror) from error
            if not written:
                raise self._failed("write", len(view) - done, at + done, "the disk took none of them")
            done += written

    def read(self, at: int, piece: np.ndarray) -> None:
        """Read into ``piece`` what was written at an offset. Raises DeviceError if the disk fails or the bytes
        differ from what was written (checksum)."""
        view = piece.data
        nbytes, wanted = self._sums[at]
        assert nbytes == len(view), f"a piece of {nbytes} bytes is read as {len(view)}"
        done = 0
        while done < len(view):
            try:
                read = os.preadv(self._file, [view[done:done + MOST_AT_ONCE]], at + done)
            except OSError as error:
                raise self._failed("read", len(view) - done, at + done, error.strerror) from error
            if not read:
                raise self._failed("read", len(view) - done, at + done, "the file ends before them")
            done += read
        found = crc32(view)
        if found != wanted:
            raise self._failed("read", nbytes, at, f"these are not the bytes that were written (checksum {found:08x}, "
                                                   f"not {wanted:08x})")

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._close()

    def _failed(self, verb: str, nbytes: int, at: int, why: Any) -> DeviceError:
        return DeviceError(f"cannot {verb} {nbytes} spilled bytes at {at} of the file in {self.folder}: {why}")


def _anonymous(folder: str) -> int:
    """Open a new unlinked file in a folder; return its descriptor. Raises OSError."""
    flag = getattr(os, "O_TMPFILE", 0)
    if flag:
        with suppress(OSError):  # not every file system supports O_TMPFILE
            return os.open(folder, os.O_RDWR | flag | os.O_CLOEXEC, 0o600)
    file, path = tempfile.mkstemp(prefix="minidl-spill-", dir=folder)
    os.unlink(path)
    return file


def disk_costs(profile: Profile, host_bytes: int) -> DiskCosts:
    """Return the costs of a profile's disk behind ``host_bytes`` of host memory, for planners."""
    return DiskCosts(host_bytes, 1.0 / profile.disk_out_bandwidth, 1.0 / profile.disk_in_bandwidth,
                     profile.disk_latency_s)


class DiskQueue:
    """The disk on a modelled clock: one transfer at a time, at the speed of the slower of link and disk."""

    def __init__(self, profile: Profile, clock: VirtualClock, host_bytes: int) -> None:
        self.profile = profile
        self.clock = clock
        self.host_bytes = host_bytes  # pieces from here on are in the file
        self._ready = 0.0

    def seconds(self, stream: int, host: Extents, link_seconds: float) -> float:
        """Return the seconds of a copy issued now, if the link alone would take ``link_seconds``.
        If it uses the file (``host``: offsets and bytes), the disk is busy until its end, so ask once for each copy."""
        spilled = sum(nbytes for at, nbytes in host if at >= self.host_bytes)
        if not spilled:
            return link_seconds
        profile, start = self.profile, max(self.clock.ready[stream], self.clock.host)
        rate = profile.disk_out_bandwidth if stream == COPY_OUT else profile.disk_in_bandwidth
        begin = max(start, self._ready)
        self._ready = begin + max(link_seconds, profile.disk_latency_s + spilled / rate)
        return self._ready - start
