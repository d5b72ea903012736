"""The lessons' pictures, with matplotlib (extra ``viz``): memory over the calls, buffers as rectangles, streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minidl.lab.lifetimes import Lifetime
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.view.recorded import Recorded
from minidl.view.recording import EventKind

GIB = 2**30
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")  # told apart by everyone
LANES = {EventKind.CALL: 0, EventKind.REPLAY: 0, EventKind.MOVE: 0, EventKind.COPY_OUT: 1, EventKind.COPY_IN: 2}
LANE_NAMES = ("computation", "copies out", "copies in")


def _axes(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def memory(trace: Trace, *, budget: int | None = None, title: str = "") -> Any:
    """Bytes that are live during each call of a step, were nothing evicted; the budget as a line."""
    live = Lifetimes.of(trace).live_bytes
    figure, axes = _axes(9, 3)
    axes.fill_between(range(len(live)), [nbytes / GIB for nbytes in live], step="post", color=COLOURS[0], alpha=0.6)
    if budget is not None:
        axes.axhline(budget / GIB, color=COLOURS[1])
        axes.text(0, budget / GIB, " budget", va="bottom", color=COLOURS[1])
    axes.set(xlabel="call", ylabel="live GiB", title=title, xlim=(0, len(live)), ylim=(0, None))
    return figure


def buffers(lifetimes: Sequence[Lifetime], offsets: Mapping[str, int], *, unit: int = 1, title: str = "") -> Any:
    """Buffers as rectangles: when they live, and where they lie."""
    figure, axes = _axes(9, 3.4)
    for number, lifetime in enumerate(lifetimes):
        low, width = offsets[lifetime.id] / unit, lifetime.upper - lifetime.lower
        axes.broken_barh([(lifetime.lower, width)], (low, lifetime.size / unit), edgecolor="white",
                         facecolor=COLOURS[number % len(COLOURS)])
        if len(lifetimes) < 20:
            axes.text(lifetime.lower + width / 2, low + lifetime.size / unit / 2, lifetime.id, ha="center", va="center")
    top = max(offsets[lifetime.id] + lifetime.size for lifetime in lifetimes) / unit
    axes.set(xlabel="time", ylabel="address", title=title, ylim=(0, top * 1.05))
    return figure


def streams(recorded: Recorded, *, title: str = "") -> Any:
    """What each of the three streams did when; computation that is done again has a colour of its own."""
    figure, axes = _axes(11, 2.4)
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in recorded.events:
        if event.kind in LANES:
            lane = LANES[event.kind]
            colour = COLOURS[1] if event.kind is EventKind.REPLAY else COLOURS[lane * 2]
            bars.setdefault((lane, colour), []).append((event.start_s, event.end_s - event.start_s))
    for (lane, colour), spans in bars.items():
        axes.broken_barh(spans, (lane - 0.4, 0.8), facecolor=colour, linewidth=0)
    axes.set(xlabel="seconds", title=title, yticks=range(len(LANE_NAMES)), yticklabels=LANE_NAMES)
    axes.invert_yaxis()
    return figure


def lines(series: Mapping[str, Sequence[float]], *, across: str, upwards: str, start: float = 0) -> Any:
    """Some series of numbers as lines with points; ``start`` is what the first point is called."""
    figure, axes = _axes(9, 3)
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        axes.plot([start + n for n in range(len(values))], values, marker="o", label=name, color=colour)
    axes.set(xlabel=across, ylabel=upwards)
    axes.legend()
    return figure


def pieces(bars: Sequence[tuple[str, int, float, float]], *, title: str = "") -> Any:
    """Some pieces of work, each (text, lane, start in seconds, end), in the lanes of the three streams."""
    figure, axes = _axes(11, 2.4)
    for text, lane, start, end in bars:
        axes.broken_barh([(1e6 * start, 1e6 * (end - start))], (lane - 0.4, 0.8), facecolor=COLOURS[lane * 2],
                         edgecolor="white")
        axes.text(5e5 * (start + end), lane, text, ha="center", va="center", fontsize=8)
    axes.set(xlabel="microseconds", title=title, yticks=range(len(LANE_NAMES)), yticklabels=LANE_NAMES)
    axes.invert_yaxis()
    return figure


def stacked(bars: Mapping[str, Mapping[str, int]], *, across: str, title: str = "") -> Any:
    """Bars of parts on top of each other, in GiB.

    bars[label][part]: bytes. All bars have the same parts.
    """
    figure, axes = _axes(9, 3.4)
    floor = [0.0] * len(bars)
    for number, part in enumerate(next(iter(bars.values()))):
        heights = [parts[part] / GIB for parts in bars.values()]
        axes.bar(list(bars), heights, bottom=floor, label=part, color=COLOURS[number % len(COLOURS)], width=0.6)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set(xlabel=across, ylabel="GiB", title=title)
    axes.legend()
    return figure
