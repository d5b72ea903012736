"""CUDA streams as a clock: positions are CUDA events, and the times between events are measured.

The three streams of every device are there from the start. A device of several ranks adds one for its exchanges.

An event is recorded after each piece of work, from a ring of events made once. So a position is an event. To wait for
one, a stream is given a wait for the event, and the host continues. The work of the compute stream between two of its
events is one segment:

  event p-1 |---- work ----| event p          its seconds are reported to its ``timed`` callback
  event p-1 |-- stood --| event p |-- work --| event p+1

A wait of the compute stream takes a position of its own, so that time spent waiting for a copy does not count as the
time of the next kernel. The first work after the host has waited takes one too, because the stream was empty; and while
an iteration is measured, each work that finds the stream empty (``sees_idle``): where the host is slower than the
device, the time between two events is the host's. Times are
read together, when an iteration has ended or on request, never while work is issued. With ``measure_exactly`` the
vendor records each kernel: a segment's time is then that of its kernels, without the host's time between them.

Knows no kernels, bytes or tensors.
"""

from collections import deque
from time import perf_counter

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Timed
from minidl.device.cuda.kernel_times import busy_seconds
from minidl.device.cuda.seam import Handle, StreamRecorder, Vendor

DEPTH = 8192  # events of a stream: the host may be ahead by this many pieces of work

Span = tuple[float, float]  # when a piece of work began and ended
Cause = tuple[int, int] | None  # (stream, position) that the compute stream, or the host before it, waited for


class EventStreams:
    """Compute, copy-out and copy-in stream, and others, on the wall clock (a ``clock.Clock``).
    Only one host thread may issue work.

    positions  pieces of work issued to each stream; finished: how many of them the host knows to be done
    stall      seconds that the compute stream has waited for copies, as far as times have been read
    stood      (stream, position) -> seconds that the compute stream waited for it
    sees_idle  True if time in which the compute stream had no work counts for none; the host then asks before each work
    spans      by stream, position -> (start, end) in seconds of ``now``, of work that ``settle`` has seen end; None
               unless ``measure`` was called
    """

    def __init__(self, vendor: Vendor, *, depth: int = DEPTH) -> None:
        self.vendor = vendor
        self.depth = depth
        self.handles: list[Handle] = []
        self.positions: list[int] = []
        self.finished: list[int] = []
        self.stall = 0.0
        self.stood: dict[tuple[int, int], float] = {}
        self._rings: list[list[Handle]] = []  # position p is at p modulo depth
        self._limits: list[int] = []  # positions at which the ring would reuse an event that is still needed
        # The compute stream's segments whose times are not read yet, as their callback or cause; the first: _unread.
        self._segments: deque[Timed | Cause] = deque()
        self._unread = 1
        self.spans: tuple[dict[int, Span], ...] | None = None
        self._zero: tuple[Handle, float] | None = None  # an event and its time, the origin of spans
        self._noted: list[tuple[int, int]] = []  # (stream, position) of work whose spans are not read yet
        self._recorder: StreamRecorder | None = None  # while times are exact; work is tagged with its position
        self.sees_idle = False
        self.gap: Cause = None  # the host has waited, so the compute stream has been idle
        self._started = perf_counter()
        for _ in (COMPUTE, COPY_OUT, COPY_IN):
            self.add()

    def add(self) -> int:
        """Create one more stream; return its number."""
        vendor, handle = self.vendor, self.vendor.stream()
        ring = [vendor.event() for _ in range(self.depth)]
        vendor.record(ring[0], handle)
        self.handles.append(handle)
        self.positions.append(0)
        self.finished.append(0)
        self._rings.append(ring)
        self._limits.append(self.depth)
        if self.spans is not None:
            self.spans = (*self.spans, {})
        return len(self.handles) - 1

    # Issuing -------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Announce work on the compute stream, before it is issued; ends the gap of a host wait, if there was one."""
        if self.sees_idle and self.gap is None and self.done(COMPUTE, self.positions[COMPUTE]):
            self.gap = COMPUTE, self.positions[COMPUTE]
        if self.gap is not None:
            cause, self.gap = self.gap, None
            self.mark(COMPUTE, cause)

    def begin_copy(self, stream: int) -> None:
        """Announce a copy or an exchange: if spans are measured, record an event at which it begins."""
        if self.spans is not None:
            self.mark(stream, (stream, 0))

    def mark(self, stream: int, wants: Timed | Cause = None) -> int:
        """Record the event that ends a piece of work of a stream; return its position.
        wants: a callback for the work's seconds; or, if the work was a wait, the (stream, position) waited for."""
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
                self._tag_next(self._recorder)
        return position

    def wait(self, stream: int, on: int, position: int, *, apart: bool = True) -> None:
        """Make later work on ``stream`` start after ``position`` of stream ``on``; the host does not wait.
        apart: False if the time of the wait counts as that of the compute stream's next work."""
        assert position <= self.positions[on], f"position {position} of stream {on} is not issued yet"
        if position <= self.finished[on]:
            return  # the host knows that it is done
        if stream == COMPUTE and apart:
            self.begin()
        self.vendor.wait(self.handles[stream], self._rings[on][position % self.depth])
        if stream == COMPUTE and apart:
            self.mark(COMPUTE, (on, position))

    def measure_exactly(self, on: bool) -> None:
        """Let the vendor's library record the times of each kernel of the compute stream, or stop it.
        Raises DeviceError."""
        if on and self._recorder is None:
            self._recorder = self.vendor.recorder(self.handles[COMPUTE])
            self._tag_next(self._recorder)
        elif not on and self._recorder is not None:
            self._report_times()
            self._recorder.close()
            self._recorder = None

    def measure(self, on: bool = True) -> None:
        """Start or stop recording when each piece of work begins and ends; delete earlier records."""
        self.spans, self._noted = tuple([{} for _ in self.handles]) if on else None, []
        if on and self._zero is None:
            event = self.vendor.event()
            self.vendor.record(event, self.handles[COMPUTE])
            self.vendor.synchronize(event)
            self._zero = event, self.now()
        self.gap = COMPUTE, self.positions[COMPUTE]  # the next work begins now, not at the end of the last work

    def _read_spans(self) -> None:
        """Read the times of the work that is known to have ended."""
        assert self._zero is not None and self.spans is not None
        (zero, began), elapsed, unread = self._zero, self.vendor.elapsed, []
        for stream, position in self._noted:
            if position > self.finished[stream]:
                unread.append((stream, position))
                continue
            start, end = (self._rings[stream][p % self.depth] for p in (position - 1, position))
            self.spans[stream][position] = began + elapsed(zero, start), began + elapsed(zero, end)
        self._noted = unread

    def _tag_next(self, recorder: StreamRecorder) -> None:
        """Tag the next work with its position.

        Room for its event is made first, because the recorder may only be read between two pieces of work.
        """
        position = self.positions[COMPUTE] + 1
        if position >= self._limits[COMPUTE]:
            self._make_room(COMPUTE, position)
        recorder.tag(position)

    # Looking -------------------------------------------------------------------------------------------------
    def synchronize(self, stream: int, position: int) -> None:
        """Block the host until a stream has reached a position."""
        assert position <= self.positions[stream], f"position {position} of stream {stream} is not issued yet"
        if position > self.finished[stream]:
            self.vendor.synchronize(self._rings[stream][position % self.depth])
            self.finished[stream] = position
            self.gap = stream, position

    def done(self, stream: int, position: int) -> bool:
        """Return True if a stream has reached a position."""
        if position <= self.finished[stream]:
            return True
        if not self.vendor.done(self._rings[stream][position % self.depth]):
            return False
        self.finished[stream] = position
        return True

    def settle(self) -> None:
        """Wait for all work of the compute stream, and read its times."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        if self.spans is not None:
            self.wait_for_all()
            self._read_spans()
        self._report_times()

    def collect(self) -> None:
        """Read the times of work that has finished, without waiting for any other."""
        low, high = self.finished[COMPUTE], self.positions[COMPUTE]
        while low < high:  # find the last position that was passed
            middle = (low + high + 1) // 2
            if self.done(COMPUTE, middle):
                low = middle
            else:
                high = middle - 1
        self._report_times()

    def end_iteration(self) -> None:
        """Read the times of finished work, and delete the records of waits."""
        self.collect()
        self.stood.clear()

    def now(self) -> float:
        """Return the seconds since these streams were made."""
        return perf_counter() - self._started

    def landed(self, position: int, stream: int = COPY_OUT) -> bool:
        """Return True if the copy at this position of ``stream`` has finished."""
        return self.done(stream, position)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Return the seconds that the compute stream waited for a copy to the device, as far as times have been read.
        """
        return self.stood.get((COPY_IN, copied_in), 0.0)

    def _make_room(self, stream: int, position: int) -> None:
        """Make sure that the CUDA event which ``position`` will reuse is no longer needed; wait if it is.

        The wait frees half of the ring of events, or the host would from now on wait for every single piece of work.
        """
        if self.finished[stream] <= position - self.depth + 1:
            reached = min(position - self.depth // 2, self.positions[stream])
            self.vendor.synchronize(self._rings[stream][reached % self.depth])
            self.finished[stream] = reached
        if stream == COMPUTE:
            self._report_times()
        if self.spans is not None:
            self._read_spans()
        # The event at ``finished`` is the start of the next segment.
        self._limits[stream] = self.finished[stream] + self.depth

    def _report_times(self) -> None:
        """Report the times of the segments that have finished, oldest first; exact times where they were recorded."""
        segments, ring, depth = self._segments, self._rings[COMPUTE], self.depth
        elapsed = self.vendor.elapsed
        exact: dict[int, float] = {}
        if self._recorder is not None:
            self.wait_for_all()
            exact = busy_seconds(self._recorder.spans() or ())  # None: some were lost, so none can be trusted
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

    def wait_for_all(self) -> None:
        """Wait for all streams: the recorder reports work only when it has ended."""
        for stream, position in enumerate(self.positions):
            if position > self.finished[stream]:
                self.vendor.synchronize(self._rings[stream][position % self.depth])
                self.finished[stream] = position
                self.gap = COMPUTE, self.positions[COMPUTE]  # the host waited, not the stream for a copy
