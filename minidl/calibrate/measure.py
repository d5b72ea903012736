"""Trains the workloads on the CPU device and measures each call; the rest of a profile is measured directly."""

import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from minidl.calibrate import fitting
from minidl.calibrate.fitting import Sample
from minidl.calibrate.workloads import QUICK, THOROUGH, Workload
from minidl.cli.app.default_memory import CPU_BUDGET_SHARE, CPU_HOST_SHARE
from minidl.device import profiles
from minidl.device.clock import Timed
from minidl.device.contract import Operand
from minidl.device.cpu import link
from minidl.device.cpu.device import ThreadedCpu
from minidl.device.fitted import keys, terms
from minidl.device.profiles import Profile
from minidl.meta import Algorithm, Cost, Meta
from minidl.outside.machine import free_memory
from minidl.runtime import Runtime

ITERATIONS = 5  # that are measured, after one that warms up
CHOICES = 3  # of a convolution's deterministic algorithms that are measured, at most
Call = tuple[str, str, tuple[Meta, ...], tuple[Meta, ...]]  # op, algorithm, inputs, outputs


class Sampler(ThreadedCpu):
    """A CPU device that stores the seconds of every launched call.
    The device offers one algorithm for each call: among the algorithms in the first one's bits class that at index
    ``choice``, or the last one if there are fewer."""

    def __init__(self, choice: int = 0) -> None:
        super().__init__("cpu", profiles.get("cpu"))
        self.choice = choice
        self.work: dict[Call, Sample] = {}
        self.seconds: dict[Call, list[float]] = {}

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        found = super().algorithms(op_name, inputs, outputs, attrs, cost)
        alike = [a for a in found if a.bits_class == found[0].bits_class]
        chosen = alike[min(self.choice, len(alike) - 1)]
        self.work[op_name, chosen.name, tuple(inputs), tuple(outputs)] = Sample(
            tuple(keys(op_name, chosen.name, inputs, outputs, attrs)), cost.kind, cost.flops, cost.nbytes,
            terms(op_name, inputs, outputs, attrs, cost), 0.0)
        return (chosen,)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        call = op_name, algorithm.name, tuple(s.meta for s in inputs), tuple(s.meta for s in outputs)
        note = self.seconds.setdefault(call, []).append
        return super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, partial(_tell, note, timed))

    def samples(self) -> list[Sample]:
        """Return one ``Sample`` for each different call that was launched, with the median of its seconds."""
        return [Sample(work.keys, work.kind, work.flops, work.nbytes, work.amounts, median(self.seconds[call]))
                for call, work in self.work.items() if self.seconds.get(call)]


def _tell(note: Callable[[float], None], timed: Timed, seconds: float) -> None:
    note(seconds)
    if timed is not None:
        timed(seconds)


def train(workload: Workload, budget_bytes: int, *, choice: int = 0,
          iterations: int = ITERATIONS) -> tuple[list[Sample], float, float]:
    """Train a workload on the CPU for one step and ``iterations`` measured ones. choice: as in ``Sampler``.

    Return the samples, and two medians over steps: idle seconds per call, and the host's seconds to issue a call.
    """
    device = Sampler(choice)
    gaps, overheads = [], []
    with Runtime(device, memory_budget=budget_bytes, host_memory=0, policy="none") as runtime:
        step = workload()
        for number in range(1 + iterations):
            device.settle()
            if number == 1:  # compiled, and every page is there
                device.seconds.clear()
            busy_before = sum(map(sum, device.seconds.values()))
            count, start = device.positions[0], perf_counter()
            with runtime.iteration():
                step()
            issued = perf_counter()
            device.settle()
            seconds, count = perf_counter() - start, device.positions[0] - count
            if number:
                gaps.append(max(0.0, seconds - sum(map(sum, device.seconds.values())) + busy_before) / count)
                overheads.append((issued - start) / count)
        samples = device.samples()
    device.close()
    return samples, median(gaps), median(overheads)


def calibrate(*, quick: bool = False, note: Callable[[str], None] = lambda line: None) -> Profile:
    """Measure this machine; return its profile. ``quick``: only a few small networks, in seconds, less exactly.

    note: called with each line of text about the results.
    """
    found = link.measure()
    note(f"copies: {found.out_bandwidth / 1e9:.1f} GB/s out, {found.in_bandwidth / 1e9:.1f} in, "
         f"{link.both_bandwidth() / 1e9:.1f} both ways at once; {found.latency_s * 1e6:.0f} microseconds each")
    free = free_memory() or 4 * profiles.get("cpu").memory_bytes
    samples: list[Sample] = []
    gaps, overheads = [], []
    for workload in QUICK if quick else THOROUGH:
        for choice in range(CHOICES):
            new, gap, overhead = train(workload, int(free * CPU_BUDGET_SHARE), choice=choice)
            # What has no alternatives is the same for every choice.
            new = [s for s in new if not choice or "/" in s.keys[-1]]
            if not new:
                break
            samples += new
            gaps.append(gap)
            overheads.append(overhead)
            note(f"{describe(workload)}, choice {choice}: {len(new)} different calls")
    return profile(samples, found, gap_s=median(gaps), overhead_s=median(overheads), free_bytes=free)


def describe(workload: Workload) -> str:
    """Return a workload's name and sizes as text, such as ``residual 16 32 4``."""
    return f"{workload.func.__name__} {' '.join(map(str, workload.args))}"


def profile(samples: Sequence[Sample], found: link.Link, *, gap_s: float, overhead_s: float,
            free_bytes: int) -> Profile:
    """Return the profile of a machine from measured numbers. ``gap_s``, the pause between calls, is added to each.
    overhead_s: the host's seconds to issue a call; free_bytes: of memory, of which the device gets a share."""
    bandwidth = 2 * min(found.out_bandwidth, found.in_bandwidth)  # a copied byte is read and written
    flops, nbytes, efficiency = fitting.peaks(samples, bandwidth)
    rates = {key: {**fitted, "calls": fitted.get("calls", 0.0) + gap_s}
             for key, fitted in fitting.rates(samples).items()}
    return Profile(
        "measured", f"this machine: {platform.machine()}, {os.cpu_count()} cores", int(free_bytes * CPU_BUDGET_SHARE),
        flops, flops, nbytes, found.out_bandwidth, found.in_bandwidth, found.latency_s, launch_overhead_s=overhead_s,
        kernel_floor_s=gap_s + min(s.seconds for s in samples), half_fill_flops=0.0, half_fill_bytes=0.0,
        host_memory_bytes=int(free_bytes * CPU_HOST_SHARE), efficiency=efficiency, rates=rates)
