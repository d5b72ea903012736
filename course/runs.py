"""Trainings on a simulated GPU, as the lessons look at them: some steps, and what the engine counted in each."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from minidl.device import Device
from minidl.lab.training_step import training_step
from minidl.memory.guided.sequence import Followed
from minidl.memory.switches import ALL_ON, Switches
from minidl.outside.units import UNLIMITED
from minidl.plan.costs import Costs
from minidl.plan.plan import Plan
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.ranks import Ranks
from minidl.runtime import Runtime
from minidl.runtime.stats import Stats
from minidl.view.recorded import Recorded
from minidl.view.recorder import StepRecorder


@dataclass(frozen=True)
class Run:
    """Some steps of a training.

    steps     what each step added to the engine's counters
    plans     the plan that each step followed; None where there was none
    followed  how each step went that followed a plan to its end
    recorded  the last step, event by event, where it was asked for
    trace     the calls of the last step
    costs     what copies cost on this device
    """

    budget_bytes: int
    steps: list[Stats]
    plans: list[Plan | None]
    followed: list[Followed | None]
    recorded: Recorded | None
    trace: Trace
    costs: Costs

    @property
    def seconds(self) -> list[float]:
        """The length of each step."""
        return [step.seconds for step in self.steps]


def train(network: str, batch: int, *, budget: int = UNLIMITED, policy: str | Policy = "none", steps: int = 2,
          device: str | Device = "sim:p100", switches: Switches = ALL_ON, slices: int = 1, record: bool = False,
          ranks: Ranks | None = None) -> Run:
    """Train a network of minidl on shapes alone. Raises OutOfMemory where an operation finds no room.

    ``record``: look at the arena at each event of the last step, which takes longer than the step.
    ``ranks``: train on one of several simulated ranks; the batch is that of all ranks together.
    """
    grown: list[Stats] = []
    plans: list[Plan | None] = []
    followed: list[Followed | None] = []
    with Runtime(device, policy=policy, memory_budget=budget, switches=switches, slices=slices,
                 ranks=ranks) as runtime:
        step, recorder = training_step(network, batch), StepRecorder(runtime)
        runtime.keeps_trace = True
        for number in range(steps):
            before = runtime.stats()
            with recorder.recording() if record and number == steps - 1 else nullcontext(), runtime.iteration():
                step()
            grown.append(runtime.stats().since(before))
            plans.append(runtime.plan)
            ended = runtime.followed()
            followed.append(None if ended is None else ended[1])
        costs = runtime.device.profile.link_costs
    assert runtime.last_trace is not None
    return Run(budget, grown, plans, followed, recorder.recorded, runtime.last_trace, costs)
