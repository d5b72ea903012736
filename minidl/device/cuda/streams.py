"""Three CUDA streams under the verbs of a clock: positions are events, and the events are also what is timed.

Behind each piece of work an event is recorded, from a ring that is made once. So a position is an event, whoever waits
for one gives the waiting stream a wait, and the host goes on. What the compute stream did between two events of its
own is one segment:

    event p-1 |---- work ----| event p          its seconds are told to whoever launched it
    event p-1 |-- stood --| event p |-- work --| event p+1

A wait of the compute stream takes a position of its own, so that the time it stood still for a copy is not counted
as the work behind it; so does the first work after the host has waited, for then the stream was empty. The times are
read in one go, when an iteration has ended or somebody asks, never while work is issued. ``measure_exactly`` lets the
vendor note each kernel instead: a segment then tells how long its kernels ran, and not how long the host took between
them.

Knows no kernels, bytes or tensors.
"""

from collections import deque
from time import perf_counter

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Timed
from minidl.device.cuda.kernel_times import busy_seconds
from minidl.device.cuda.seam import Handle, Recorder, Vendor

DEPTH = 8192  # events of a stream: pieces of work that the host may be ahead of it

Span = tuple[float, float]  # when a piece of work began and ended
Cause = tuple[int, int] | None  # (stream, position) that the compute stream, or the host before it, stood still for


class EventStreams:
    """Compute, copy-out and copy-in stream on the wall clock (a ``clock.Clock``). One host thread issues.

    positions  pieces of work given to each stream; finished: how many of them the host has seen to be done
    stall      seconds that the compute stream has stood still for copies, as far as the times have been read
    stood      (stream, position) -> seconds that the compute stream waited for it
    spans      by stream, position -> (start, end) in seconds of ``now``, as far as ``settle`` has seen work end; None
               unless ``measure`` was called
    """

    def __init__(self, vendor: Vendor, *, depth: int = DEPTH) -> None:
        self.vendor = vendor
        self.depth = depth
        self.handles = [vendor.stream() for _ in range(3)]
        self.positions = [0, 0, 0]
        self.finished = [0, 0, 0]
        self.stall = 0.0
        self.stood: dict[tuple[int, int], float] = {}
        self._rings = [[vendor.event() for _ in range(depth)] for _ in range(3)]  # position p is at p modulo depth
        self._limits = [depth, depth, depth]  # positions from which an event is taken over that may still be needed
        # The compute stream's segments whose times are not read yet, by what wants them; the first is at ``_unread``.
        self._segments: deque[Timed | Cause] = deque()
        self._unread = 1
        self.spans: tuple[dict[int, Span], ...] | None = None
        self._zero: tuple[Handle, float] | None = None  # an event, and when it was, from which spans count
        self._noted: list[tuple[int, int]] = []  # (stream, position) of work whose spans are not read yet
        self._recorder: Recorder | None = None  # while times are exact; work is noted under its position
        self.gap: Cause = None  # the host has waited: when the compute stream goes on, it has stood still
        self._started = perf_counter()
        for ring, handle in zip(self._rings, self.handles, strict=True):
            vendor.record(ring[0], handle)

    # Issuing -------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Say that work comes next on the compute stream, before it is given."""
        if self.gap is not None:
            cause, self.gap = self.gap, None
            self.mark(COMPUTE, cause)

    def begin_copy(self, stream: int) -> None:
        """Say that a copy comes next: where spans are measured, it begins when the stream has come so far."""
        if self.spans is not None:
            self.mark(stream, (stream, 0))

    def mark(self, stream: int, wants: Timed | Cause = None) -> int:
        """End a piece of work that a stream was given; returns its position. ``wants``: told what it took, or what the
        compute stream stood still for."""
        position = self.positions[stream] + 1
        if position >= self._limits[stream]:
            self._make_room(stream, position)
        self.vendor.record(self._rings[stream][position % self.depth], self.handles[stream])
        self.positions[stream] = position
        if self.spans is not None and not isinstance(wants, tuple):
            self._noted.append((stream, position))
        if stream == COMPUTE:
            self._segments.append(wants)
            if self._recorder is not None:
                self._note_next(self._recorder)
        return position

    def wait(self, stream: int, on: int, position: int) -> None:
        """What is given to ``stream`` from now on starts after ``position`` of stream ``on``; the host goes on."""
        assert position <= self.positions[on], f"position {position} of stream {on} is not issued yet"
        if position <= self.finished[on]:
            return  # the host has seen it
        if stream == COMPUTE:
            self.begin()
        self.vendor.wait(self.handles[stream], self._rings[on][position % self.depth])
        if stream == COMPUTE:
            self.mark(COMPUTE, (on, position))

    def measure_exactly(self, on: bool) -> None:
        """Let the vendor note what the compute stream is given from now on, or stop that. Raises DeviceError."""
        if on and self._recorder is None:
            self._recorder = self.vendor.recorder(self.handles[COMPUTE])
            self._note_next(self._recorder)
        elif not on and self._recorder is not None:
            self._read()
            self._recorder.close()
            self._recorder = None

    def measure(self, on: bool = True) -> None:
        """Note from now on when each piece of work starts and ends, or no longer; forgets what was noted before."""
        self.spans, self._noted = ({}, {}, {}) if on else None, []
        if on and self._zero is None:
            event = self.vendor.event()
            self.vendor.record(event, self.handles[COMPUTE])
            self.vendor.synchronize(event)
            self._zero = event, self.now()
        self.gap = COMPUTE, self.positions[COMPUTE]  # what comes next begins now, and not where the last work ended

    def _read_spans(self) -> None:
        """Note the times of the work that is known to have ended."""
        assert self._zero is not None and self.spans is not None
        (zero, began), elapsed, unread = self._zero, self.vendor.elapsed, []
        for stream, position in self._noted:
            if position > self.finished[stream]:
                unread.append((stream, position))
                continue
            start, end = (self._rings[stream][p % self.depth] for p in (position - 1, position))
            self.spans[stream][position] = began + elapsed(zero, start), began + elapsed(zero, end)
        self._noted = unread

    def _note_next(self, recorder: Recorder) -> None:
        """What comes is the next position's. Room for its event is made now: notes are taken only between two pieces
        of work, when nothing is under way."""
        position = self.positions[COMPUTE] + 1
        if position >= self._limits[COMPUTE]:
            self._make_room(COMPUTE, position)
        recorder.tag(position)

    # Looking -------------------------------------------------------------------------------------------------
    def synchronize(self, stream: int, position: int) -> None:
        """The host waits for a position of a stream."""
        assert position <= self.positions[stream], f"position {position} of stream {stream} is not issued yet"
        if position > self.finished[stream]:
            self.vendor.synchronize(self._rings[stream][position % self.depth])
            self.finished[stream] = position
            self.gap = stream, position

    def done(self, stream: int, position: int) -> bool:
        """Whether a stream has reached a position."""
        if position <= self.finished[stream]:
            return True
        if not self.vendor.done(self._rings[stream][position % self.depth]):
            return False
        self.finished[stream] = position
        return True

    def settle(self) -> None:
        """Wait for all that the compute stream was given, and read its times."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        if self.spans is not None:
            for stream in (COPY_OUT, COPY_IN):
                if self.positions[stream] > self.finished[stream]:
                    self.vendor.synchronize(self._rings[stream][self.positions[stream] % self.depth])
                    self.finished[stream] = self.positions[stream]
            self._read_spans()
        self._read()

    def collect(self) -> None:
        """Read the times of what has finished; waits for nothing."""
        low, high = self.finished[COMPUTE], self.positions[COMPUTE]
        while low < high:  # the last position that was passed
            middle = (low + high + 1) // 2
            if self.done(COMPUTE, middle):
                low = middle
            else:
                high = middle - 1
        self._read()

    def end_iteration(self) -> None:
        """Read the times of what has finished, and drop what was noted of waits."""
        self.collect()
        self.stood.clear()

    def now(self) -> float:
        """Seconds since these streams were made, whatever has finished."""
        return perf_counter() - self._started

    def landed(self, copied_out: int) -> bool:
        """Whether a copy out has finished."""
        return self.done(COPY_OUT, copied_out)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Seconds that the compute stream stood still for a copy in, as far as its times have been read."""
        return self.stood.get((COPY_IN, copied_in), 0.0)

    def _make_room(self, stream: int, position: int) -> None:
        """See to it that the event which ``position`` takes over is no longer needed: wait, if it must be.

        Down to half of the ring, or the host would wait for every single piece of work from now on.
        """
        if self.finished[stream] <= position - self.depth + 1:
            reached = min(position - self.depth // 2, self.positions[stream])
            self.vendor.synchronize(self._rings[stream][reached % self.depth])
            self.finished[stream] = reached
        if stream == COMPUTE:
            self._read()
        if self.spans is not None:
            self._read_spans()
        # The event at ``finished`` is where the segment behind it starts.
        self._limits[stream] = self.finished[stream] + self.depth

    def _read(self) -> None:
        """Tell the times of the segments that have finished, in order. What was noted exactly is told so."""
        segments, ring, depth = self._segments, self._rings[COMPUTE], self.depth
        elapsed = self.vendor.elapsed
        exact: dict[int, float] = {}
        if self._recorder is not None:
            self._stand_still()
            exact = busy_seconds(self._recorder.spans() or ())  # None: some were lost, and so all are doubtful
        end = ring[(self._unread - 1) % depth]
        for position in range(self._unread, self.finished[COMPUTE] + 1):
            start, end = end, ring[position % depth]
            wants = segments.popleft()
            if wants is None:
                continue
            seconds = elapsed(start, end)
            if not isinstance(wants, tuple):
                wants(exact.get(position, seconds) if exact else seconds)
            elif wants[0] != COMPUTE:
                self.stall += seconds
                self.stood[wants] = self.stood.get(wants, 0.0) + seconds
        self._unread = self.finished[COMPUTE] + 1

    def _stand_still(self) -> None:
        """Wait for all streams: work is noted when it has ended."""
        for stream in (COPY_OUT, COPY_IN, COMPUTE):
            position = self.positions[stream]
            if position > self.finished[stream]:
                self.vendor.synchronize(self._rings[stream][position % self.depth])
                self.finished[stream] = position
                self.gap = COMPUTE, self.positions[COMPUTE]  # the host's wait, and no copy's
