"""The plans of cuDNN for each convolution: listed once, timed once, stored on disk.

A plan's time depends on the GPU, the library's version and the memory format, so each combination has its own file in
``$XDG_CACHE_HOME/minidl``. Timing needs operands: they are allocated outside the arena when a convolution is first
asked for (in ``train``: by the dry run, before anything else runs), and freed again. Without memory for them a plan's
seconds stay unknown, and the next process tries again.

The deterministic mode's choice of plan does not depend on times (see ``convolution``), so every process chooses the
same plan, with or without this file. Knows convolutions and plans; no tensors.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf, prod
from pathlib import Path
from statistics import median

from minidl.device.cuda.plan_files import PlanFile
from minidl.device.cuda.seam import Convolution, Handle, PlanInfo, Vendor
from minidl.errors import DeviceError, DeviceShort
from minidl.meta import DTYPES, aligned
from minidl.outside.validation import is_real, is_whole

LAYOUT = "nhwc"
MOST_TIMED = 10  # cuDNN's heuristics seldom put the fastest plan later; PyTorch stops there too
RUNS = 5  # after one that warms up; the median counts
SLOW = 3.0  # a plan slower than the best so far by this factor is timed only once


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """A plan of cuDNN, with its workspace in bytes.

    ``seconds``: a median of RUNS, or one run of a slow plan; None if it was not timed. ``rank``: its place in the order
    of cuDNN's heuristics; None: that in the list.
    """

    name: str
    workspace: int
    deterministic: bool
    seconds: float | None = None
    rank: int | None = None


def default_folder() -> Path:
    """Return the folder for plans: ``$XDG_CACHE_HOME/minidl`` or ``~/.cache/minidl``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl"


def worth_timing(plans: Sequence[PlanInfo]) -> tuple[TimedPlan, ...]:
    """Return the first ``MOST_TIMED`` plans of the heuristics' list, and some later ones.
    A later one is returned if it needs less workspace than all plans before it; or, if it adds in a fixed order,
    less than all plans before it that do so, too."""
    kept, least, least_fixed = [], inf, inf
    for rank, p in enumerate(plans):
        if rank < MOST_TIMED or p.workspace < least or p.deterministic and p.workspace < least_fixed:
            kept.append(TimedPlan(p.name, p.workspace, p.deterministic, rank=rank))
        least = min(least, p.workspace)
        least_fixed = min(least_fixed, p.workspace) if p.deterministic else least_fixed
    return tuple(kept)


class PlanTable:
    """The plans of cuDNN for each convolution that are worth timing, listed and timed once.

    folder: where they are stored; None keeps them in this process only."""

    def __init__(self, vendor: Vendor, folder: Path | None = None) -> None:
        self.vendor = vendor
        self._table: dict[str, tuple[TimedPlan, ...]] = {}
        self._tried: set[str] = set()  # by this process
        self._file = PlanFile(folder, vendor.properties, LAYOUT)
        table = self._file.read(dict[str, tuple[TimedPlan, ...]])
        if table is not None and all(is_whole(plan.workspace) and (plan.seconds is None or is_real(plan.seconds))
                                     for plans in table.values() for plan in plans):
            self._table = table

    @cached_property
    def _clock(self) -> tuple[Handle, Handle, Handle]:
        """(Stream, start event, end event) of the vendor's, made when a plan is first timed."""
        return self.vendor.stream(), self.vendor.event(), self.vendor.event()

    def of(self, convolution: Convolution, *, timed: bool = True) -> tuple[TimedPlan, ...]:
        """Return the plans of a convolution, in the order of the heuristics. timed: time those that were not yet.
        A plan that fails when it is timed is left out. Raises DeviceError if all fail, or cuDNN cannot list them."""
        name = key(convolution)
        plans = self._table.get(name)
        if plans is None:
            plans = worth_timing(self.vendor.plans(convolution))
        if timed and name not in self._tried and any(plan.seconds is None for plan in plans):
            self._tried.add(name)
            plans = self._time(convolution, plans)
        if plans != self._table.get(name):
            self._table[name] = plans
            self._file.write({key: [asdict(plan) for plan in plans] for key, plans in self._table.items()})
        return plans

    def _time(self, convolution: Convolution, plans: tuple[TimedPlan, ...]) -> tuple[TimedPlan, ...]:
        """Return the plans with their seconds, as far as there is memory to time them."""
        vendor = self.vendor
        itemsize = DTYPES[convolution.dtype].itemsize
        sizes = [aligned(itemsize * prod(shape)) for shape in (convolution.x, convolution.w, convolution.y)]
        try:
            base = vendor.allocate(sum(sizes))
        except DeviceError:
            return plans
        stream, _, end = self._clock
        failed: DeviceError | None = None
        try:
            vendor.fill(base, 0, sum(sizes), stream)
            vendor.record(end, stream)
            vendor.synchronize(end)  # nothing else runs while a plan is timed
            x, w, y = base, base + sizes[0], base + sizes[0] + sizes[1]
            timed: list[TimedPlan] = []
            for plan in plans:
                best = min((p.seconds for p in timed if p.seconds is not None), default=inf)
                try:
                    timed.append(self._time_plan(convolution, plan, (x, w, y), best))
                except DeviceShort:  # it may run with more free memory, and every process must list the same plans
                    timed.append(plan)
                except DeviceError as error:  # drop a plan that is listed but does not run
                    failed = error
            if failed is not None and not timed:
                raise DeviceError(f"none of the {len(plans)} plans of {key(convolution)} runs: {failed}") from failed
            return tuple(timed)
        finally:
            vendor.record(end, stream)
            vendor.synchronize(end)
            vendor.free(base)

    def _time_plan(self, convolution: Convolution, plan: TimedPlan, operands: tuple[int, int, int],
                   best: float) -> TimedPlan:
        """Return the plan with its median seconds, or its first time if that is far above ``best``.
        Without memory for its workspace it is returned as it is. Raises DeviceError if it does not run."""
        vendor = self.vendor
        stream, start, end = self._clock
        try:
            workspace = vendor.allocate(plan.workspace) if plan.workspace else 0
        except DeviceError:
            return plan
        try:
            seconds = []
            for _ in range(RUNS + 1):
                vendor.record(start, stream)
                vendor.convolve(convolution, plan.name, *operands, workspace, stream)
                vendor.record(end, stream)
                vendor.synchronize(end)
                seconds.append(vendor.elapsed(start, end))
                if len(seconds) == 2 and seconds[1] > SLOW * best:
                    return replace(plan, seconds=seconds[1])
            return replace(plan, seconds=median(seconds[1:]))
        finally:
            if workspace:
                vendor.free(workspace)


def key(c: Convolution) -> str:
    """Return a convolution as text, the key of its plans on disk."""
    def by(extent: tuple[int, ...]) -> str:
        return "x".join(map(str, extent))
    return (f"{c.kind} {c.dtype}{' tf32' if c.tf32 else ''} x {by(c.x)} w {by(c.w)} y {by(c.y)} "
            f"stride {by(c.stride)} padding {by(c.padding)}")

