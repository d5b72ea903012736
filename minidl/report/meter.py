"""Measures steps: seconds, bytes swapped and recomputed, time lost; and feeds the bar. Reads no clock of its own."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from statistics import median

from minidl.data import Feed
from minidl.outside.units import format_bytes
from minidl.runtime import Runtime
from minidl.runtime.stats import Stats

REMEMBERED = 10_000  # steps: more would take memory without end, and change no median by much
BOTTLENECK = 0.1  # of a step that waits for its batch: above it, data is what limits the speed


@dataclass(frozen=True, slots=True)
class Step:
    """One step: seconds on the meter's clock, of which it waited for its batch; growth of the runtime's counters, and
    the loss (NaN: none)."""

    seconds: float
    grown: Stats
    loss: float
    data_seconds: float = 0.0


class Meter:
    """``add`` after every step. ``clock`` gives seconds: the device's own where time is modelled, else the wall's."""

    def __init__(self, runtime: Runtime, batch: int, clock: Callable[[], float], feed: Feed | None = None, *,
                 items: str = "images") -> None:
        self.runtime = runtime
        self.batch = batch
        self.items = items
        self.steps: deque[Step] = deque(maxlen=REMEMBERED)
        self.warm = False  # the first step has been forgotten
        self._clock = clock
        self._feed = feed
        self._before, self._time, self._waited_before = runtime.stats(), clock(), self._waited()

    def add(self, loss: float) -> Step:
        """The step that ends now."""
        now, stats = self._clock(), self.runtime.stats()
        step = Step(now - self._time, stats.since(self._before), loss, self._waited() - self._waited_before)
        self.warm |= len(self.steps) == REMEMBERED
        self.steps.append(step)
        self._before, self._time, self._waited_before = stats, now, self._waited()
        return step

    def restart(self) -> None:
        """Exclude the time since the last step (an evaluation, a checkpoint) from every step."""
        self._before, self._time, self._waited_before = self.runtime.stats(), self._clock(), self._waited()

    def _waited(self) -> float:
        """Seconds that steps have waited for batches so far."""
        return self._feed.waited_seconds if self._feed is not None else 0.0

    def median(self, value: Callable[[Step], float]) -> float:
        """Over the later half of the steps, when plans have settled; the first, which warms up, only if it is alone. Of
        more than ``REMEMBERED`` only the latest count."""
        count = len(self.steps)
        skipped = max(count // 2, 0 if self.warm or count == 1 else 1)
        return median(map(value, islice(self.steps, skipped, None)))

    def unsettled_seconds(self) -> float:
        """How much longer the first half of the steps took than as many at the later half's median."""
        first, settled = list(self.steps)[:len(self.steps) // 2], self.median(lambda step: step.seconds)
        return max(0.0, sum(step.seconds - settled for step in first))

    def bar_fields(self) -> str:
        """The last step in a few words, for the bar."""
        step = self.steps[-1]
        fields = [f"{rate(self.batch, step.seconds)} {self.items}/s",
                  f"loss {f'{step.loss:.4f}' if isfinite(step.loss) else '-'}",
                  f"memory {format_bytes(step.grown.peak_bytes)} of {format_bytes(step.grown.budget_bytes)}",
                  f"swapped {format_bytes(step.grown.swapped_out_bytes + step.grown.swapped_in_bytes)}"]
        if self.runtime.device.wall_clock or not self.runtime.device.has_values:
            fields.append(f"stall {share(step.grown.stall_seconds, step.seconds)}")
        if step.data_seconds > BOTTLENECK * step.seconds:
            fields.append(f"data is the bottleneck: waits {share(step.data_seconds, step.seconds)}")
        return ", ".join(fields)


def rate(items: float, seconds: float) -> str:
    """Items a second, in three figures."""
    value = items / seconds if seconds > 0 else 0.0
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """A part in percent."""
    return f"{part / whole:.0%}" if whole > 0 else "0%"
