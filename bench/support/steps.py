"""A training step of a known model on a simulated GPU, repeated and read off."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from minidl import Runtime
from minidl.device.profiles import Profile
from minidl.lab.training_step import SEPARATE, training_step
from minidl.memory.switches import ALL_ON, Switches
from minidl.outside.units import UNLIMITED
from minidl.plan.costs import Costs
from minidl.plan.trace import Trace
from minidl.runtime.stats import Stats


@dataclass(frozen=True)
class Run:
    """The last of several equal training steps: its counters, and those of the run (peaks)."""

    batch: int
    last: Stats
    best_seconds: float

    @property
    def images_per_second(self) -> float:
        """Images of the last step over its seconds."""
        return self.batch / self.last.seconds


def repeated(runtime: Runtime, step: Callable[[], None], steps: int) -> tuple[Stats, float]:
    """Carry out ``steps`` steps; return the last one's counters and the fastest one's seconds. Raises OutOfMemory."""
    before, best = runtime.stats(), float("inf")
    for _ in range(steps):
        with runtime.iteration():
            step()
        now = runtime.stats()
        last, before = now.since(before), now
        best = min(best, last.seconds)
    return last, best


def run(name: str, batch: int, policy: str, *, steps: int = 3, device: str = "sim:p100",
        budget: int | str | None = None, switches: Switches = ALL_ON, slices: int = 1) -> Run:
    """Train a few steps. Raises OutOfMemory."""
    with Runtime(device=device, policy=policy, memory_budget=budget, switches=switches, slices=slices) as runtime:
        return Run(batch, *repeated(runtime, training_step(name, batch), steps))


def unmanaged(name: str, batch: int, *, device: str = "sim:p100", switches: Switches = ALL_ON) -> Run:
    """Train a few steps with unlimited memory, as ``run`` does."""
    return run(name, batch, "none", device=device, budget=UNLIMITED, switches=switches)


class Unmanaged(NamedTuple):
    """A step with unlimited memory: its seconds, its trace, and the profile of the GPU."""

    seconds: float
    trace: Trace
    profile: Profile


def unmanaged_step(make: Callable[[], Callable[[], None]], *, device: str = "sim:p100",
                   switches: Switches = ALL_ON, slices: int = 1) -> Unmanaged:
    """Carry out two steps with unlimited memory, and return the second, which all later ones equal.

    make: makes a network in the current runtime, and returns its step.
    """
    with Runtime(device=device, policy="none", memory_budget=UNLIMITED, switches=switches, slices=slices) as runtime:
        step = make()
        for _ in range(2):
            before = runtime.stats()
            with runtime.iteration():
                step()
                trace = runtime.trace()
        return Unmanaged(runtime.stats().since(before).seconds, trace, runtime.device.profile)


def unmanaged_trace(name: str, batch: int, *, switches: Switches = ALL_ON) -> tuple[Trace, Costs, int]:
    """Return the trace of a step with unlimited memory, the costs of the link, and the device's bytes."""
    _, trace, profile = unmanaged_step(partial(training_step, name, batch), switches=switches)
    return trace, profile.link_costs, profile.memory_bytes


def forward_seconds(name: str, batch: int) -> tuple[float, float]:
    """Return the device seconds of the forward pass's calls that can be replayed, and of all calls of a training step.
    """
    with Runtime(device="sim:p100", policy="none", memory_budget=UNLIMITED, switches=SEPARATE) as runtime:
        step = training_step(name, batch)
        with runtime.iteration():
            step()
            calls = runtime.trace().calls
    end = next(i for i, call in enumerate(calls) if call.op == "cross_entropy") + 1
    return sum(call.seconds for call in calls[:end] if call.replayable), sum(call.seconds for call in calls)
