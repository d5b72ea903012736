"""Waits between streams, times of events and durations of copies: all that follows from a device's clock alone."""

from dataclasses import replace
from time import perf_counter

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Extents, Marks, Timed
from minidl.device.clock_interface import Clock
from minidl.device.profiles import Profile
from minidl.device.spill import DiskQueue, disk_costs
from minidl.plan.costs import Costs

LEAST_TO_TELL = 1 << 20  # bytes copied in an iteration, at least, for a measured link speed


class Timekeeper:
    """Waits between three streams, and their times in seconds since the device was made.

    clock                the streams' clock, virtual or real
    positions            the number of pieces of work issued to each stream so far
    wall_clock           True if seconds are measured: they differ from run to run, and are known only afterwards
    measured_iterations  the durations in a trace are the median of this many iterations
    disk                 the durations of copies to a spill file, where time is modelled
    spills_from          the host offset at which the spill file begins, if there is one
    """

    wall_clock = False
    measured_iterations = 1

    def __init__(self, profile: Profile, clock: Clock) -> None:
        self.profile = profile
        self.clock = clock
        self.positions = clock.positions
        self.disk: DiskQueue | None = None
        self.spills_from: int | None = None
        self._copies: tuple[list[tuple[int, float]], ...] = ([], [])  # (bytes, seconds) out and in, in this iteration
        self._waited = [[0, 0, 0] for _ in range(3)]  # per stream: the position of each other that it waits for

    # Waits ---------------------------------------------------------------------------------------------------
    def wait(self, stream: int, on: int, position: int) -> None:
        """Make work issued to ``stream`` from now on start after ``position`` of stream ``on``."""
        waited = self._waited[stream]
        if position > waited[on]:
            waited[on] = position
            self.clock.wait(stream, on, position)

    def wait_marks(self, stream: int, marks: Marks) -> None:
        """Make a stream wait until each other stream has passed its position in ``marks``."""
        waited = self._waited[stream]
        computed, copied_out, copied_in = marks
        if copied_out > waited[COPY_OUT] and stream != COPY_OUT:
            self.wait(stream, COPY_OUT, copied_out)
        if copied_in > waited[COPY_IN] and stream != COPY_IN:
            self.wait(stream, COPY_IN, copied_in)
        if stream != COMPUTE and computed > waited[COMPUTE]:
            self.wait(stream, COMPUTE, computed)

    def synchronize(self, stream: int, position: int) -> None:
        """Block the host until a stream has reached a position."""
        self.clock.synchronize(stream, position)

    def settle(self) -> None:
        """Block the host until the times of the compute stream's work are known; the virtual clock never blocks."""
        self.clock.settle()

    # Times ---------------------------------------------------------------------------------------------------
    def now(self) -> float:
        """Return the seconds since the device was made.
        The virtual clock returns when all work launched so far will have finished; the wall clock the time now, so
        synchronize first."""
        return self.clock.now()

    def host_now(self) -> float:
        """Return the seconds of this machine's clock, also if the device's time is modelled."""
        return perf_counter()

    def stall_seconds(self) -> float:
        """Return the seconds that the compute stream has waited for copies since the device was made."""
        return self.clock.stall

    def landed(self, position: int, stream: int = COPY_OUT) -> bool:
        """Return True if no later kernel would wait for the copy at this position of ``stream``.
        A real clock asks if it has ended, the virtual clock if it ends before the compute stream's work issued so
        far."""
        return self.clock.landed(position, stream)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Return the seconds that compute waited for the copy in at ``copied_in``, due at position ``computed``."""
        return self.clock.lateness(copied_in, computed)

    @property
    def link_costs(self) -> Costs:
        """The profile's costs of copies, also to a spill file if there is one; they take no time from kernels."""
        costs = self.profile.link_costs
        return costs if self.spills_from is None else replace(costs, disk=disk_costs(self.profile, self.spills_from))

    def out_seconds(self, nbytes: int) -> float:
        """Return the modelled seconds of a copy of ``nbytes`` to the host."""
        return self.profile.link_latency_s + nbytes / self.profile.link_out_bandwidth

    def in_seconds(self, nbytes: int) -> float:
        """Return the modelled seconds of a copy of ``nbytes`` from the host."""
        return self.profile.link_latency_s + nbytes / self.profile.link_in_bandwidth

    def copy_seconds(self, stream: int, host: Extents, nbytes: int) -> float:
        """Return the modelled seconds of a copy of ``nbytes`` to or from these host pieces, issued now.
        If they are in the spill file, the disk is busy until its end, so ask once for each copy."""
        seconds = self.out_seconds(nbytes) if stream == COPY_OUT else self.in_seconds(nbytes)
        return seconds if self.disk is None else self.disk.seconds(stream, host, seconds)

    def move_seconds(self, nbytes: int) -> float:
        """Return the modelled seconds of a copy of ``nbytes`` within the arena."""
        return 2 * nbytes / (self.profile.memory_bandwidth * self.profile.efficiency["copy"])

    # Measuring -----------------------------------------------------------------------------------------------
    def measure(self, on: bool) -> None:
        """Turn detailed, slower measuring on or off for the rest of the iteration. A modelled clock ignores it."""

    def link_seconds_per_byte(self) -> tuple[float | None, float | None]:
        """Return this iteration's seconds per byte, (out, in), without latencies and copies to and from the spill file.
        None for a direction in which fewer than LEAST_TO_TELL bytes were copied."""
        def rate(copies: list[tuple[int, float]]) -> float | None:
            nbytes = sum(n for n, _ in copies)
            if nbytes < LEAST_TO_TELL:
                return None
            return max(sum(s for _, s in copies) - len(copies) * self.profile.link_latency_s, 0.0) / nbytes
        return rate(self._copies[0].copy()), rate(self._copies[1].copy())

    def end_iteration(self) -> None:
        """Delete the records of the iteration that has ended."""
        self.clock.end_iteration()
        for copies in self._copies:
            copies.clear()

    def _noting_copy(self, stream: int, host: Extents, nbytes: int) -> Timed:
        """Return a callback that records a copy's seconds on the link; None if the copy uses the spill file."""
        if self.spills_from is not None and any(at >= self.spills_from for at, _ in host):
            return None
        copies = self._copies[stream - COPY_OUT]
        return lambda seconds: copies.append((nbytes, seconds))
