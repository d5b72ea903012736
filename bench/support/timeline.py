"""One step on the CPU as a picture: the work of each of the three streams over time. Drawing needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minidl.device.clock import STREAM_NAMES
from minidl.device.cpu.device import ThreadedCpu
from minidl.errors import UserError
from minidl.runtime import Runtime

# The family of an operation, by the beginning of its name.
FAMILIES = {"convolutions": ("conv",), "products": ("linear", "matmul"), "normalisation": ("batch_norm", "layer_norm"),
            "optimizer": ("sgd", "adam")}
OTHERS, SLIDES, COPIES = "other operations", "blocks slid together", "copies"
COLOURS = {"convolutions": "#4477aa", "products": "#228833", "normalisation": "#ccbb44", "optimizer": "#aa3377",
           OTHERS: "#66ccee", SLIDES: "#222222", COPIES: "#ee6677"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of work on a stream, of a family of COLOURS; times in seconds from the beginning of the step."""

    stream: int
    start_s: float
    end_s: float
    family: str


def family(op_name: str) -> str:
    """Return the family of an operation, which decides its colour."""
    return next((name for name, stems in FAMILIES.items() if op_name.startswith(stems)), OTHERS)


def record(runtime: Runtime, step: Callable[[], object]) -> list[Bar]:
    """Run a step on worker threads and return the work of their streams. Raises UserError for any other device."""
    device = runtime.device
    if not isinstance(device, ThreadedCpu):
        raise UserError(f"a timeline shows the CPU's worker threads, and {device.name} has none")
    names: dict[int, str] = {}
    launch = device.launch

    def noted(op_name: str, *arguments: Any) -> int:
        position = launch(op_name, *arguments)
        names[position] = op_name
        return position

    device.settle()
    device.launch = noted  # type: ignore[method-assign, assignment]
    device.streams.measure()
    try:
        start = device.now()
        step()
        device.settle()
        spans = device.streams.spans or ()
    finally:
        device.streams.measure(False)
        del device.launch
    bars = []
    for stream, works in enumerate(spans):
        for position, (begin, end) in works.items():
            kind = COPIES if stream else family(names[position]) if position in names else SLIDES
            bars.append(Bar(stream, begin - start, end - start, kind))
    return bars


def draw(bars: Sequence[Bar], title: str, path: str) -> None:
    """Write a picture: one row per stream, time in milliseconds. Raises UserError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UserError('pictures need matplotlib, which is not installed: pip install "minidl[viz]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(figsize=(14, 3.2), layout="constrained")
    for kind, colour in COLOURS.items():
        for stream in range(len(STREAM_NAMES)):
            pieces = [(1e3 * bar.start_s, 1e3 * (bar.end_s - bar.start_s)) for bar in bars
                      if bar.family == kind and bar.stream == stream]
            axes.broken_barh(pieces, (len(STREAM_NAMES) - 1 - stream - 0.4, 0.8), facecolors=colour)
    axes.set_yticks(range(len(STREAM_NAMES)), reversed(STREAM_NAMES))
    axes.set_xlabel("milliseconds")
    axes.set_xlim(0, 1e3 * max(bar.end_s for bar in bars))
    axes.set_title(title)
    used = {bar.family for bar in bars}
    axes.legend(handles=[Patch(color=c, label=k) for k, c in COLOURS.items() if k in used], ncols=7,
                loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
