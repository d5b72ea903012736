"""NVIDIA's profiling interface as a ``seam.Recorder``: start and end of every kernel, copy and fill, by cupti-python.

CUPTI hands out records of three kinds, in any order, when its buffers are full or flushed:

    of a call of the driver     correlation id
    of an external correlation  correlation id -> the number that was pushed last on the calling thread: our tag
    of a kernel, copy or fill   correlation id, stream, start and end in nanoseconds

A record of work may come before the one that says whose it is, so both are kept until they have met. Calls are recorded
only because external correlations come with their records. CUPTI takes callbacks once in a process, and calls them from
a thread of its own.
"""

import ctypes
import threading
from typing import Any

from cupti import cupti

from minidl.device.cuda.seam import Span
from minidl.errors import DeviceError

KIND = cupti.ActivityKind
WORK = (KIND.CONCURRENT_KERNEL, KIND.MEMCPY, KIND.MEMSET)
CALLS = (KIND.DRIVER, KIND.RUNTIME)
RECORDED = (*WORK, *CALLS, KIND.EXTERNAL_CORRELATION)
OURS = cupti.ExternalCorrelationKind.CUSTOM0
BUFFER_BYTES = 8 << 20
EVEN_INCOMPLETE = 1  # cuptiActivityFlushAll: buffers that are not full, too; all of their work must have ended


class Notes:
    """What CUPTI has told, of all streams, and nobody has taken yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: list[tuple[int, int, int, int]] = []  # correlation id, stream, start, end
        self._tags: dict[int, int] = {}

    def add(self, records: list[Any]) -> None:
        """Called by CUPTI; its records do not outlive the call."""
        work, tags = [], {}
        for record in records:
            if record.kind == KIND.EXTERNAL_CORRELATION:
                if record.external_kind == OURS:
                    tags[record.correlation_id] = record.external_id
            elif record.kind in WORK:
                work.append((record.correlation_id, record.stream_id, record.start, record.end))
        with self._lock:
            self._work += work
            self._tags |= tags

    def take(self, stream: int) -> list[Span]:
        """The tagged work of a stream; all else is forgotten."""
        with self._lock:
            work, tags, self._work, self._tags = self._work, self._tags, [], {}
        return [Span(tags[correlation], start * 1e-9, end * 1e-9) for correlation, on, start, end in work
                if on == stream and correlation in tags]


_notes = Notes()
_registered = False


class CuptiRecorder:
    """Records the work of one stream of a context. Raises DeviceError where CUPTI cannot, as under another profiler."""

    def __init__(self, context: int, stream: int) -> None:
        global _registered
        try:
            if not _registered:
                cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), _notes.add)
                _registered = True
            for kind in RECORDED:
                cupti.activity_enable(kind)
            self._stream = cupti.get_stream_id_ex(context, stream, 0)
        except cupti.cuptiError as error:
            raise DeviceError(f"CUPTI cannot record: {error}; is another profiler at work?") from None
        self._tagged = False
        self._lost()  # what was dropped before, or is left over, is nobody's
        _notes.take(self._stream)

    def tag(self, number: int) -> None:
        """What this thread gives to streams from now on is noted under this number."""
        if self._tagged:
            cupti.activity_pop_external_correlation_id(OURS)
        cupti.activity_push_external_correlation_id(OURS, number)
        self._tagged = True

    def spans(self) -> list[Span] | None:
        """The tagged work since the last time; None if records were dropped. All work must have ended."""
        cupti.activity_flush_all(EVEN_INCOMPLETE)
        spans = _notes.take(self._stream)
        return None if self._lost() else spans

    def close(self) -> None:
        """Stop recording. What was recorded and not taken is left behind."""
        if self._tagged:
            cupti.activity_pop_external_correlation_id(OURS)
            self._tagged = False
        for kind in RECORDED:
            cupti.activity_disable(kind)

    def _lost(self) -> int:
        """How many records were dropped since this was asked last."""
        count = ctypes.c_size_t()
        cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value
