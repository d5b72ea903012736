"""Exact seconds of pieces of work: what a vendor noted of each kernel and copy, instead of the time between two events.

    event p-1 |--- the host is late ---|kernel|-- gap --|kernel|--| event p      events: all of it
                                        ======           ======                  exact: the two kernels

A piece of work is all that the compute stream is given from one event to the next, whatever that is: several kernels,
an upload, the copies of a slide. Knows spans; no streams and no library.
"""

from collections.abc import Iterable

from minidl.device.cuda.seam import Span


def busy_seconds(spans: Iterable[Span]) -> dict[int, float]:
    """By tag, how long at least one of its spans lasted. They come in any order, and may overlap."""
    busy: dict[int, float] = {}
    until: dict[int, float] = {}  # by tag, the end of what was counted
    for span in sorted(spans, key=lambda span: span.start):
        start = max(span.start, until.get(span.tag, span.start))
        busy[span.tag] = busy.get(span.tag, 0.0) + max(0.0, span.end - start)
        until[span.tag] = max(span.end, start)
    return busy
