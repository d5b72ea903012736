"""Measures steps (seconds, bytes swapped and recomputed, time lost), and fills the progress bar."""

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

REMEMBERED = 10_000  # steps: a limit on memory that hardly changes a median
BOTTLENECK = 0.1  # share of a step spent waiting for its batch, above which data limits the speed


@dataclass(frozen=True, slots=True)
class StepMeasurements:
    """The measurements of one step.

    seconds: duration of the step; ``data_seconds`` of them were spent waiting for its batch. grown: increase of the
    runtime's counters. loss: NaN if there is none.
    """

    seconds: float
    grown: Stats
    loss: float
    data_seconds: float = 0.0


class Meter:
    """Measures steps: call ``add`` after each.
    ``clock`` returns seconds, of the device's clock if its time is modelled. batch: items a step; items: their name.
    feed: the source of the batches, which knows how long steps have waited for them; None: they never wait."""

    def __init__(self, runtime: Runtime, batch: int, clock: Callable[[], float], feed: Feed | None = None, *,
                 items: str = "images") -> None:
        self.runtime = runtime
        self.batch = batch
        self.items = items
        self.steps: deque[StepMeasurements] = deque(maxlen=REMEMBERED)
        self.warm = False  # True once the first step has been dropped from ``steps``
        self._clock = clock
        self._feed = feed
        self._before, self._time, self._waited_before = runtime.stats(), clock(), self._waited()

    def add(self, loss: float) -> StepMeasurements:
        """Record the step that ends now, with its loss, and return its measurements."""
        now, stats = self._clock(), self.runtime.stats()
        step = StepMeasurements(now - self._time, stats.since(self._before), loss, self._waited() - self._waited_before)
        self.warm |= len(self.steps) == REMEMBERED
        self.steps.append(step)
        self._before, self._time, self._waited_before = stats, now, self._waited()
        return step

    def restart(self) -> None:
        """Exclude the time since the last step (an evaluation, a checkpoint) from every step."""
        self._before, self._time, self._waited_before = self.runtime.stats(), self._clock(), self._waited()

    def _waited(self) -> float:
        """Return the seconds that all steps so far have waited for batches."""
        return self._feed.waited_seconds if self._feed is not None else 0.0

    def median(self, value: Callable[[StepMeasurements], float]) -> float:
        """Return the median of a value over the second half of the steps, when plans no longer change much.

        The first step, which warms up, counts only if it is the only one. Only the latest ``REMEMBERED`` steps are
        kept.
        """
        count = len(self.steps)
        skipped = max(count // 2, 0 if self.warm or count == 1 else 1)
        return median(map(value, islice(self.steps, skipped, None)))

    def unsettled_seconds(self) -> float:
        """Return the seconds that the first half of the steps took longer than at the second half's median, or 0."""
        first, settled = list(self.steps)[:len(self.steps) // 2], self.median(lambda step: step.seconds)
        return max(0.0, sum(step.seconds - settled for step in first))

    def bar_fields(self) -> str:
        """Return the last step as a short text for the progress bar."""
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
    """Return a rate in items per second as text, with three figures."""
    value = items / seconds if seconds > 0 else 0.0
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Return ``part`` as a percentage of ``whole``, as text without decimals; 0% unless ``whole`` is above 0."""
    return f"{part / whole:.0%}" if whole > 0 else "0%"
