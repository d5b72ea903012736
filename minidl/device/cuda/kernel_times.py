"""Seconds of pieces of work without the gaps between kernels, from the vendor's record of each kernel and copy.

  event p-1 |--- the host is late ---|kernel|-- gap --|kernel|--| event p      time between events: all of it
                                      ======           ======                  time counted here: the two kernels

A piece of work is everything issued to the compute stream between two events: several kernels, an upload, the copies of
a slide.
"""

from collections.abc import Iterable

from minidl.device.cuda.seam import TimedWork


def busy_seconds(spans: Iterable[TimedWork]) -> dict[int, float]:
    """Return, by tag, the seconds in which at least one of its spans ran; spans may overlap, in any order."""
    busy: dict[int, float] = {}
    until: dict[int, float] = {}  # by tag, the end of the time counted so far
    for span in sorted(spans, key=lambda span: span.start):
        start = max(span.start, until.get(span.tag, span.start))
        busy[span.tag] = busy.get(span.tag, 0.0) + max(0.0, span.end - start)
        until[span.tag] = max(span.end, start)
    return busy
