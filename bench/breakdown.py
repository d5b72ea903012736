"""What each feature is worth: Figure 8 of the Capuchin paper, on sim:p100.

    python -m bench.breakdown > bench/results/breakdown.md

(a) swapping only, InceptionV3 at 200 and 400; (b) recomputing only, ResNet-50 at 300 and 540. The paper adds features
to other systems (vDNN; OpenAI's checkpointing in two modes); here they are turned off in one engine, so "none of them"
is the nearest to these systems, not the same. Nothing is fused, as nothing was in the TensorFlow of that time. Speeds
are medians of the last five steps, when plans have settled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from minidl import Runtime
from minidl import device as devices
from minidl.device import Device
from minidl.device.sim import SimDevice
from minidl.memory.switches import Switches
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Proposal
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.policies.capuchin.policy import CapuchinRecompute, CapuchinSwap
from minidl.testing.steps import UNLIMITED, training_step
from minidl.units import format_bytes

STATED_BANDWIDTH = 12e9  # bytes a second: what the paper plans with (section 4.4)
MEASURED_OUT, MEASURED_IN = 12.7e9, 9.6e9  # what its 25 GB in 1.97 s and 2.60 s come to (section 6.2)
STEPS, LAST = 60, 5  # feedback is said to settle within 50
RECOMPUTE_STEPS = 12  # no swap-in is triggered, so there is nothing to correct


class StatedBandwidth(CapuchinSwap):
    """Plans with the bandwidth that the paper states, whatever the link does."""

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        return super().plan(trace, Costs(1 / STATED_BANDWIDTH, 1 / STATED_BANDWIDTH, costs.latency_seconds), limits)


@dataclass(frozen=True)
class Row:
    """One way to run, and what the paper reports for it, where it does."""

    label: str
    switches: Switches
    paper: Sequence[str] = ("-", "-")


@dataclass(frozen=True)
class Case:
    """One part of the figure: rows at two batches."""

    title: str
    model: str
    batches: tuple[int, int]
    policy: Policy
    rows: tuple[Row, ...]
    steps: int = STEPS


ALL_ON = Switches(fused=False)
SWAP_NONE = replace(ALL_ON, decoupled_swap=False, feedback=False, measured_times=False)
RECOMPUTE_NONE = replace(ALL_ON, collective=False, measured_times=False)
SWAPS = (
    Row("none of them", SWAP_NONE, ("vDNN: 1", "vDNN: 1")),
    Row("+ measured times, decoupled swap", replace(ALL_ON, feedback=False), ("+73.9%", "")),
    Row("+ feedback: all of them", ALL_ON, ("+21.9%", "together +5.5%")),
    Row("all but decoupled swap", replace(ALL_ON, decoupled_swap=False)),
    Row("all but measured times", replace(ALL_ON, measured_times=False)),
)
RECOMPUTES = (
    Row("none of them", RECOMPUTE_NONE, ("OpenAI-S: 1", "OpenAI-M: 1")),
    Row("+ measured times", replace(ALL_ON, collective=False), ("+37.9%", "+10.7%")),
    Row("+ collective: all of them", ALL_ON, ("0", "+7.1%")),
    Row("all but measured times", replace(ALL_ON, measured_times=False)),
)
SWAP = Case("(a) Swapping", "inception_v3", (200, 400), CapuchinSwap(), SWAPS)
RECOMPUTE = Case("(b) Recomputing", "resnet50", (300, 540), CapuchinRecompute(), RECOMPUTES, RECOMPUTE_STEPS)


def speed(device: Device, model: str, batch: int, budget: int, policy: Policy | str, switches: Switches,
          steps: int) -> float:
    """Images a second, once settled. Raises OutOfMemory."""
    with Runtime(device, policy=policy, memory_budget=budget, switches=switches) as runtime:
        step = training_step(runtime, model, batch)
        ends = []
        for _ in range(steps):
            with runtime.iteration():
                step()
            ends.append(runtime.stats().seconds)
    return batch / median(b - a for a, b in zip(ends[-LAST - 1:], ends[-LAST:], strict=False))


def table(case: Case, device: Device, budget: int, setting: str) -> None:
    """Print one table; a gain is over the row above in the paper's order, a loss is against all of them."""
    print(f"### {case.title}, {case.model}: {setting}\n")
    heads = [f"{case.model} at {batch}, images/s | change | paper" for batch in case.batches]
    print("| | " + " | ".join(heads) + " |\n|---|" + "--:|--:|--:|" * len(case.batches))
    speeds = [[speed(device, case.model, batch, budget, case.policy, row.switches, case.steps)
               for batch in case.batches] for row in case.rows]
    limits = [speed(device, case.model, batch, UNLIMITED, "none", ALL_ON, LAST + 1) for batch in case.batches]
    full = next(n for n, row in enumerate(case.rows) if row.switches == ALL_ON)
    for n, row in enumerate(case.rows):
        cells = []
        for column, value in enumerate(speeds[n]):
            against = speeds[n - 1 if n <= full else full][column]
            change = "" if n == 0 else f"{100 * (value / against - 1):+.1f}%"
            cells.append(f"{value:.1f} ({100 * value / limits[column]:.1f}%) | {change} | {row.paper[column]}")
        print(f"| {row.label} | " + " | ".join(cells) + " |", flush=True)
    print()


def main() -> None:
    device = devices.create("sim:p100")
    link = replace(device.profile, link_out_bandwidth=MEASURED_OUT, link_in_bandwidth=MEASURED_IN)
    print("# What each feature is worth\n\nMade by `python -m bench.breakdown`. In brackets the share of the speed "
          "with unlimited memory.\n\"Change\" is over the row above down to \"all of them\", and against that below "
          "it. Nothing is fused.\n")
    budget = device.profile.memory_bytes
    for case in (SWAP, RECOMPUTE):
        table(case, device, budget, f"in {format_bytes(budget)}")
    table(replace(SWAP, policy=StatedBandwidth()), SimDevice(device.name, link), budget,
          "planned with 12 GB/s over a link of 12.7 out and 9.6 in")


if __name__ == "__main__":
    main()
