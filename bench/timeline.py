"""Draws one managed training step on the CPU: what each of the three streams did when. Needs matplotlib (``viz``)."""

from collections.abc import Sequence
from typing import Any

from bench.cpu_cases import Case, half_of_peak, runtime_for, training_step
from minidl import Runtime
from minidl.device.clock import STREAM_NAMES
from minidl.device.threads import ThreadedCpuDevice

FAMILIES = {"convolutions": ("conv",), "products": ("linear", "matmul"), "normalisation": ("batch_norm", "layer_norm"),
            "optimizer": ("sgd", "adam")}
OTHERS, SLIDES, COPIES = "other operations", "blocks slid together", "copies"
COLOURS = {"convolutions": "#4477aa", "products": "#228833", "normalisation": "#ccbb44", "optimizer": "#aa3377",
           OTHERS: "#66ccee", SLIDES: "#222222", COPIES: "#ee6677"}
Bar = tuple[int, float, float, str]  # stream, start and end in seconds, family


def family(op_name: str) -> str:
    """What an operation is drawn as."""
    return next((name for name, stems in FAMILIES.items() if op_name.startswith(stems)), OTHERS)


def record(runtime: Runtime, step: Any) -> list[Bar]:
    """Run a step and return what happened, times from its beginning."""
    device = runtime.device
    assert isinstance(device, ThreadedCpuDevice)
    names: dict[int, str] = {}
    launch = device.launch

    def noted(op_name: str, *arguments: Any) -> int:
        position = launch(op_name, *arguments)
        names[position] = op_name
        return position

    device.settle()
    device.launch = noted  # type: ignore[method-assign, assignment]
    device.streams.measure()
    start = device.now()
    step()
    device.settle()
    spans = device.streams.spans
    device.streams.measure(False)
    del device.launch
    assert spans is not None
    bars = []
    for stream, works in enumerate(spans):
        for position, (begin, end) in works.items():
            kind = COPIES if stream else family(names[position]) if position in names else SLIDES
            bars.append((stream, begin - start, end - start, kind))
    return bars


def draw(bars: Sequence[Bar], title: str, path: str) -> None:
    """One row a stream, time in milliseconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(figsize=(14, 3.2), layout="constrained")
    for kind, colour in COLOURS.items():
        for stream in range(len(STREAM_NAMES)):
            pieces = [(1e3 * a, 1e3 * (b - a)) for at, a, b, k in bars if k == kind and at == stream]
            axes.broken_barh(pieces, (len(STREAM_NAMES) - 1 - stream - 0.4, 0.8), facecolors=colour)
    axes.set_yticks(range(len(STREAM_NAMES)), reversed(STREAM_NAMES))
    axes.set_xlabel("milliseconds")
    axes.set_xlim(0, 1e3 * max(end for _, _, end, _ in bars))
    axes.set_title(title)
    used = {kind for *_, kind in bars}
    axes.legend(handles=[Patch(color=c, label=k) for k, c in COLOURS.items() if k in used], ncols=7,
                loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
    figure.savefig(path, dpi=120)


def draw_step(case: Case, batch: int, policy: str, settling: int, path: str) -> None:
    """A step in half of the unmanaged peak (see ``half_of_peak``), after ``settling`` iterations."""
    with runtime_for(None, policy) as runtime:
        step = training_step(runtime, case, batch)
        step()
        step()
        peak, half = runtime.stats().peak_bytes, half_of_peak(runtime, step)
        runtime.device.close()  # type: ignore[attr-defined] # an arena of that size is not needed twice
    with runtime_for(half, policy) as runtime:
        step = training_step(runtime, case, batch)
        for _ in range(settling):
            step()
        before = runtime.stats()
        bars = record(runtime, step)
        grown = runtime.stats().since(before)
    draw(bars, f"{case.name} at {case.size}, {half / 1e6:.0f} of {peak / 1e6:.0f} MB, {policy}: "
               f"{grown.swapped_out_bytes / 1e6:.0f} MB out, {grown.swapped_in_bytes / 1e6:.0f} in, "
               f"{grown.recomputed_bytes / 1e6:.0f} recomputed; stall {1e3 * grown.stall_seconds:.0f} ms", path)
