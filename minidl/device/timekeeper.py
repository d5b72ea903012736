"""Who waits for whom, when things happen and what copies took: what follows from a device's clock alone."""

from time import perf_counter

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Clock, Marks, Timed
from minidl.device.profiles import Profile
from minidl.plan.costs import Costs

LEAST_TO_TELL = 1 << 20  # bytes copied in an iteration from which the link's speed can be told


class Timekeeper:
    """Waits between three streams, and their times. Times are in seconds since the device was made.

    clock                the streams' time, virtual or real
    positions            the events of all that each stream was given so far
    wall_clock           seconds are measured: they differ from run to run, and are known only afterwards
    measured_iterations  how many iterations the durations in a trace are the median of
    """

    wall_clock = False
    measured_iterations = 1

    def __init__(self, profile: Profile, clock: Clock) -> None:
        self.profile = profile
        self.clock = clock
        self.positions = clock.positions
        self._copies: tuple[list[tuple[int, float]], ...] = ([], [])  # (bytes, seconds) out and in, in this iteration
        self._waited = [[0, 0, 0] for _ in range(3)]  # per stream: how far on each other it already waits

    # Waits ---------------------------------------------------------------------------------------------------
    def wait(self, stream: int, on: int, position: int) -> None:
        """Work given to ``stream`` from now on starts after ``position`` of stream ``on``."""
        waited = self._waited[stream]
        if position > waited[on]:
            waited[on] = position
            self.clock.wait(stream, on, position)

    def wait_marks(self, stream: int, marks: Marks) -> None:
        """Wait for every stream that used some bytes before, except the waiting one, which is in order anyway."""
        waited = self._waited[stream]
        computed, copied_out, copied_in = marks
        if copied_out > waited[COPY_OUT] and stream != COPY_OUT:
            self.wait(stream, COPY_OUT, copied_out)
        if copied_in > waited[COPY_IN] and stream != COPY_IN:
            self.wait(stream, COPY_IN, copied_in)
        if stream != COMPUTE and computed > waited[COMPUTE]:
            self.wait(stream, COMPUTE, computed)

    def synchronize(self, stream: int, position: int) -> None:
        """The host waits for a position of a stream."""
        self.clock.synchronize(stream, position)

    def settle(self) -> None:
        """Return when the times of all that was launched are known: on a modelled clock they are."""
        self.clock.settle()

    # Times ---------------------------------------------------------------------------------------------------
    def now(self) -> float:
        """Seconds since the start. On the virtual clock, when all that was launched so far has finished; on the wall
        clock it is the time now, so synchronize before to have it all."""
        return self.clock.now()

    def host_now(self) -> float:
        """Seconds on this machine's clock, also where the device's time is modelled."""
        return perf_counter()

    def stall_seconds(self) -> float:
        """How long the compute stream has stood still for copies, since the start."""
        return self.clock.stall

    def landed(self, copied_out: int) -> bool:
        """True if a copy out will have finished, as far as is known, when the work launched so far has."""
        return self.clock.landed(copied_out)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Seconds by which a copy in, to be ready when the compute stream had reached ``computed``, came too late."""
        return self.clock.lateness(copied_in, computed)

    @property
    def link_costs(self) -> Costs:
        """The costs of copies by the profile, without a loss for kernels beside them."""
        return self.profile.link_costs

    def out_seconds(self, nbytes: int) -> float:
        """Modelled seconds of a copy of ``nbytes`` to the host."""
        return self.profile.link_latency_s + nbytes / self.profile.link_out_bandwidth

    def in_seconds(self, nbytes: int) -> float:
        """Modelled seconds of a copy of ``nbytes`` from the host."""
        return self.profile.link_latency_s + nbytes / self.profile.link_in_bandwidth

    def move_seconds(self, nbytes: int) -> float:
        """Modelled seconds of a copy of ``nbytes`` within the arena."""
        return 2 * nbytes / (self.profile.memory_bandwidth * self.profile.efficiency["copy"])

    # Measuring -----------------------------------------------------------------------------------------------
    def measure(self, on: bool) -> None:
        """Say whether what comes, up to the iteration's end, will be measured: a device may then look more closely, at
        the price of speed. On a modelled clock there is nothing to look at."""

    def link_seconds_per_byte(self) -> tuple[float | None, float | None]:
        """Seconds per byte, out and in, in this iteration; None if too little was copied to tell."""
        def rate(copies: list[tuple[int, float]]) -> float | None:
            nbytes = sum(n for n, _ in copies)
            if nbytes < LEAST_TO_TELL:
                return None
            return max(sum(s for _, s in copies) - len(copies) * self.profile.link_latency_s, 0.0) / nbytes
        return rate(self._copies[0].copy()), rate(self._copies[1].copy())

    def end_iteration(self) -> None:
        """Called at each iteration's end: what was noted for it is dropped."""
        self.clock.end_iteration()
        for copies in self._copies:
            copies.clear()

    def _noting(self, stream: int, nbytes: int) -> Timed:
        """Notes the seconds of a copy of ``nbytes`` on this stream, for ``link_seconds_per_byte``."""
        copies = self._copies[stream - COPY_OUT]
        return lambda seconds: copies.append((nbytes, seconds))
