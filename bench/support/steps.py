"""A training step of a known model on a simulated GPU, repeated and read off."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from minidl import Runtime, models
from minidl.device.profiles import Profile
from minidl.memory.switches import ALL_ON, Switches
from minidl.meta import int64
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.plan.costs import Costs
from minidl.plan.trace import Trace
from minidl.runtime.stats import Stats

UNLIMITED = 1 << 50  # bytes
SEPARATE = Switches(fused=False)  # as in the frameworks whose speeds were published


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


def training_step(runtime: Runtime, name: str, batch: int) -> Callable[[], None]:
    """A step (forward, backward, SGD with momentum) of a model in the current runtime, on inputs without values."""
    model = models.create(name)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    shape = (batch, *models.find(name).input_shape)

    def step() -> None:
        optimizer.zero_grad()
        images = runtime.tensor(None, shape=shape)
        labels = runtime.tensor(None, shape=(batch,), dtype=int64)
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def repeated(runtime: Runtime, step: Callable[[], None], steps: int) -> tuple[Stats, float]:
    """The last of so many steps, by its counters, and the seconds of the fastest. Raises OutOfMemory."""
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
        return Run(batch, *repeated(runtime, training_step(runtime, name, batch), steps))


def unmanaged(name: str, batch: int, *, device: str = "sim:p100", switches: Switches = ALL_ON) -> Run:
    """The same step with unlimited memory."""
    return run(name, batch, "none", device=device, budget=UNLIMITED, switches=switches)


class Unmanaged(NamedTuple):
    """A step with unlimited memory: its seconds, its trace, and the profile of the GPU."""

    seconds: float
    trace: Trace
    profile: Profile


def unmanaged_step(make: Callable[[Runtime], Callable[[], None]], *, device: str = "sim:p100",
                   switches: Switches = ALL_ON, slices: int = 1) -> Unmanaged:
    """The second step, like all after it, of what ``make`` makes in a runtime."""
    with Runtime(device=device, policy="none", memory_budget=UNLIMITED, switches=switches, slices=slices) as runtime:
        step = make(runtime)
        for _ in range(2):
            before = runtime.stats()
            with runtime.iteration():
                step()
                trace = runtime.trace()
        return Unmanaged(runtime.stats().since(before).seconds, trace, runtime.device.profile)


def unmanaged_trace(name: str, batch: int, *, switches: Switches = ALL_ON) -> tuple[Trace, Costs, int]:
    """A training step with unlimited memory; and what a plan for it is weighed with: the link, the bytes there are."""
    _, trace, profile = unmanaged_step(lambda runtime: training_step(runtime, name, batch), switches=switches)
    return trace, profile.link_costs, profile.memory_bytes


def forward_seconds(name: str, batch: int) -> tuple[float, float]:
    """Device seconds of the forward calls that a replay may run, and of all calls, of one step."""
    with Runtime(device="sim:p100", policy="none", memory_budget=UNLIMITED, switches=SEPARATE) as runtime:
        step = training_step(runtime, name, batch)
        with runtime.iteration():
            step()
            calls = runtime.trace().calls
    end = next(i for i, call in enumerate(calls) if call.op == "cross_entropy") + 1
    return sum(call.seconds for call in calls[:end] if call.replayable), sum(call.seconds for call in calls)
