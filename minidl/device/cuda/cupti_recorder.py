"""A ``seam.StreamRecorder`` by CUPTI (cupti-python): the start and end of every kernel, copy and fill.

CUPTI delivers three kinds of records, in any order, when its buffers are full or flushed:

  a call of the driver      correlation id
  an external correlation   correlation id -> the number that the calling thread has pushed last: our tag
  a kernel, copy or fill    correlation id, stream, start and end in nanoseconds

A record of work may arrive before the record with its tag, so both are kept until they are joined. Driver calls are
recorded only because external correlations are delivered with their records. CUPTI takes callbacks once in a process,
and calls them from its own thread.
"""

import ctypes
import threading
from typing import Any

from cupti import cupti

from minidl.device.cuda.seam import TimedWork
from minidl.errors import DeviceError

KIND = cupti.ActivityKind
WORK = (KIND.CONCURRENT_KERNEL, KIND.MEMCPY, KIND.MEMSET)
CALLS = (KIND.DRIVER, KIND.RUNTIME)
RECORDED = (*WORK, *CALLS, KIND.EXTERNAL_CORRELATION)
OURS = cupti.ExternalCorrelationKind.CUSTOM0
BUFFER_BYTES = 8 << 20
EVEN_INCOMPLETE = 1  # cuptiActivityFlushAll: also flush buffers that are not full; their work must have ended


class CuptiRecords:
    """The records that CUPTI has delivered, of all streams, and that no ``take`` has returned yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: list[tuple[int, int, int, int]] = []  # correlation id, stream, start, end
        self._tags: dict[int, int] = {}

    def add(self, records: list[Any]) -> None:
        """Add records; CUPTI calls this, and its records do not outlive the call."""
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

    def take(self, stream: int) -> list[TimedWork]:
        """Return the tagged work of a stream, and delete all other records."""
        with self._lock:
            work, tags, self._work, self._tags = self._work, self._tags, [], {}
        return [TimedWork(tags[correlation], start * 1e-9, end * 1e-9) for correlation, on, start, end in work
                if on == stream and correlation in tags]


_notes = CuptiRecords()
_registered = False


class CuptiRecorder:
    """A recorder of the work of one stream. Raises DeviceError if CUPTI cannot record, as under another profiler."""

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
            raise DeviceError(f"CUPTI cannot record: {error}; is another profiler running?") from None
        self._tagged = False
        self._lost()  # discard the count of earlier drops, and earlier records
        _notes.take(self._stream)

    def tag(self, number: int) -> None:
        """Tag the work that this thread issues from now on with this number."""
        if self._tagged:
            cupti.activity_pop_external_correlation_id(OURS)
        cupti.activity_push_external_correlation_id(OURS, number)
        self._tagged = True

    def spans(self) -> list[TimedWork] | None:
        """Return the tagged work since the last call; None if records were dropped. All work must have ended."""
        cupti.activity_flush_all(EVEN_INCOMPLETE)
        spans = _notes.take(self._stream)
        return None if self._lost() else spans

    def close(self) -> None:
        """Stop recording. Records that were not taken are discarded."""
        if self._tagged:
            cupti.activity_pop_external_correlation_id(OURS)
            self._tagged = False
        for kind in RECORDED:
            cupti.activity_disable(kind)

    def _lost(self) -> int:
        """Return how many records CUPTI has dropped since the last call."""
        count = ctypes.c_size_t()
        cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value
