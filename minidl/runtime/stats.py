"""The counters of a runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minidl.device import Device
from minidl.memory.manager import Manager


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the runtime was made, in bytes and in seconds on the device's clock, and gauges of bytes.

    ``used_bytes`` and ``host_used_bytes`` are in use now; ``peak_bytes`` counts since ``Runtime.reset_peak``.
    ``stall_seconds``: time in which computation waited for copies. ``moved_bytes``, ``slid_seconds``: copies within
    device memory, and the device's estimate of their time. ``slower_seconds``: seconds that calls took longer than with
    their fastest algorithm, because memory had no room for its workspace. ``calls``: their number, views included.
    """

    seconds: float
    stall_seconds: float
    recompute_seconds: float
    swapped_out_bytes: int
    swapped_in_bytes: int
    recomputed_bytes: int
    moved_bytes: int
    slid_seconds: float
    slower_seconds: float
    used_bytes: int
    peak_bytes: int
    budget_bytes: int
    host_used_bytes: int
    host_peak_bytes: int
    calls: int

    @classmethod
    def of(cls, device: Device, memory: Manager, calls: int) -> Stats:
        """Read the counters of a device and its memory. calls: those of the program so far."""
        allocator, arena, host, replaying = memory.allocator, memory.arena, memory.allocator.host, memory.replaying
        return cls(device.now(), device.stall_seconds(), replaying.seconds, allocator.swapped_out_bytes,
                   allocator.swapped_in_bytes, replaying.recomputed_bytes, allocator.moved_bytes,
                   allocator.slid_seconds, memory.runner.workspaces.slower_seconds, arena.used_bytes,
                   arena.peak_bytes, arena.capacity, host.used_bytes, host.peak_bytes, calls)

    def since(self, before: Stats) -> Stats:
        """Return the growth of the counters since an earlier reading; gauges and peaks keep their present values."""
        counters = ("seconds", "stall_seconds", "recompute_seconds", "swapped_out_bytes", "swapped_in_bytes",
                    "recomputed_bytes", "moved_bytes", "slid_seconds", "slower_seconds", "calls")
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in counters})
