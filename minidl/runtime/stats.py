"""The counters of a runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the runtime was made, in bytes and in seconds on the device's clock.

    ``peak_bytes`` counts since ``Runtime.reset_peak``. ``stall_seconds``: time in which computation waited for
    copies.
    """

    seconds: float
    stall_seconds: float
    recompute_seconds: float
    swapped_out_bytes: int
    swapped_in_bytes: int
    recomputed_bytes: int
    moved_bytes: int
    used_bytes: int
    peak_bytes: int
    budget_bytes: int
    host_used_bytes: int
    host_peak_bytes: int
    calls: int

    def since(self, before: Stats) -> Stats:
        """Return the growth of the counters since an earlier reading; gauges and peaks keep their present values."""
        counters = ("seconds", "stall_seconds", "recompute_seconds", "swapped_out_bytes", "swapped_in_bytes",
                    "recomputed_bytes", "moved_bytes", "calls")
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in counters})
