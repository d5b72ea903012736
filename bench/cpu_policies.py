"""Policies in parts of the peak on the CPU device, in turns: shares of the unmanaged speed, and where the time goes.

    python -m bench.cpu_policies [--cases resnet18:16,...] [--policies passive,capuchin,auto] [--steps 60]
                                 [--budgets 75,50,30] > bench/results/cpu_policies.md

In each round every policy does one step of a training of its own, and is compared with the unmanaged step of that
round, so other work on the machine disturbs all alike. A share is the median over the later half of the rounds, after
plans have settled. Processor time is that of kernels, copies and the host's thread (Linux counts it for each thread).
Other work on the machine stretches it far less than the wall clock. The bound of the link is that of
``minidl.planning.bound``, for kernels that share their processor time evenly, and for copies that take their processor
time and nothing from kernels: no plan is faster.
"""

import argparse
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.cpu_cases import CASES, part_of_peak, runtime_for, training_step
from minidl import Runtime, device, policies
from minidl.cli.app.default_memory import default_memory
from minidl.device.clock import STREAM_NAMES
from minidl.plan.costs import Costs
from minidl.plan.trace import Trace, scaled
from minidl.planning.bound import bound
from minidl.runtime.stats import Stats

POLICIES = "passive,capuchin,auto"
UNMANAGED = "none"
SMALLER = {"resnet50": 64}  # pixels a side
INSTANTS = 24  # during which the bound looks at memory
KINDS = ("kernels", "copies", "host")


@dataclass(frozen=True)
class Step:
    """One training step: seconds of the wall clock, milliseconds of the processors by kind, and the counters."""

    seconds: float
    processors: dict[str, float]
    stats: Stats


def thread_times() -> dict[int, float]:
    """Milliseconds that each thread of this process has been on a processor; none where the system does not say."""
    times = {}
    tasks = Path("/proc/self/task")
    for task in os.listdir(tasks) if tasks.exists() else ():
        times[int(task)] = int((tasks / task / "schedstat").read_text().split()[0]) / 1e6
    return times


def measured(runtime: Runtime, training: object) -> Step:
    """Carry out one training step and wait until its streams have ended; return its seconds and counters."""
    assert callable(training)
    before, stats, began = thread_times(), runtime.stats(), perf_counter()
    training()
    for stream, position in enumerate(runtime.device.positions):
        runtime.device.synchronize(stream, position)
    seconds, after = perf_counter() - began, thread_times()
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    spent = dict.fromkeys(KINDS, 0.0)
    for task, now in after.items():
        name = names.get(task, "")  # those of the kernels' thread pools are not Python's
        kind = "host" if name == "MainThread" else "copies" if any(name.endswith(s) for s in STREAM_NAMES[1:]) else (
            "kernels")
        spent[kind] += now - before.get(task, 0.0)
    return Step(seconds, spent, runtime.stats().since(stats))


def allowed_share(trace: Trace, seconds: float, per_byte: float, budget: int) -> float:
    """Return the most of the unmanaged speed that any plan can keep, by the bound of ``minidl.planning.bound``.

    The iteration's kernels take ``seconds`` in all, and the link takes ``per_byte`` seconds for each byte each way.
    """
    factor = seconds / trace.seconds
    calls = tuple(replace(call, seconds=call.seconds * factor, algorithms=scaled(call.algorithms, factor))
                  for call in trace.calls)
    return bound(Trace(calls, trace.tensors), Costs(per_byte, per_byte, 0.0), budget, instants=INSTANTS).speed


def rows(name: str, batch: int, chosen: list[str], steps: int, percent: int) -> None:
    """Print the lines of one case in so many percent of its unmanaged peak."""
    case = replace(CASES[name], size=SMALLER.get(name, CASES[name].size))
    with runtime_for(None, UNMANAGED) as probe:
        step = training_step(probe, case, batch)
        step()
        budget = part_of_peak(probe, step, percent)
        del step
    host = default_memory(device.create("cpu"))[1]
    runtimes = {UNMANAGED: runtime_for(None, UNMANAGED)}
    for policy in chosen:
        runtimes[policy] = Runtime("cpu", memory_budget=budget, host_memory=host, policy=policies.create(policy))
    trainings, done = {}, {policy: list[Step]() for policy in runtimes}
    for policy, runtime in runtimes.items():
        with runtime:
            trainings[policy] = training_step(runtime, case, batch)
    for number in range(steps):
        order = list(runtimes)
        for policy in order[number % len(order):] + order[:number % len(order)]:
            with ExitStack() as stack:
                stack.enter_context(runtimes[policy])
                done[policy].append(measured(runtimes[policy], trainings[policy]))
    later = range(steps // 2, steps)
    for policy, runtime in runtimes.items():
        these = [done[policy][n] for n in later]
        share = median(done[UNMANAGED][n].seconds / done[policy][n].seconds for n in later)
        spent = [median(each.processors[kind] for each in these) for kind in KINDS]
        less = median(sum(done[UNMANAGED][n].processors.values()) / max(sum(done[policy][n].processors.values()), 1e-9)
                      for n in later)
        out, back = (median(getattr(each.stats, which) for each in these) / 1e6
                     for which in ("swapped_out_bytes", "swapped_in_bytes"))
        guide = runtime.guide
        allowed, planned = "", " | | "
        if guide is not None:
            if guide.entries and out + back:
                kernels = median(done[UNMANAGED][n].processors["kernels"] for n in later) / 1e3 / (os.cpu_count() or 1)
                share_of_link = allowed_share(guide.entries[-1].trace, kernels, spent[1] / (out + back) / 1e9,
                                              runtime.budget_bytes)
                allowed = f"{100 * share_of_link:.0f}%"
            planned = (f"{guide.costs.contention:.2f} | {guide.allowance.first_seconds:.2f} | "
                       f"{guide.allowance.share or 0:.1%}")
        print(f"| {name} | {batch} | {budget / 1e6:.0f} | {policy} | {median(each.seconds for each in these):.3f} "
              f"| {100 * share:.0f}% | {allowed} | " + " | ".join(f"{each:.0f}" for each in spent) +
              f" | {100 * less:.0f}% | {out:.0f} | {back:.0f} | {planned} |", flush=True)


def main() -> None:
    """Read the command line, and print the table of each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="resnet18:16,resnet50:8,vgg11:16,bert-small:8", help="name:batch, ...")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--budgets", default="50", help="percent of the unmanaged peak")
    args = parser.parse_args()
    print(f"# Policies at {args.budgets}% of the peak, on the CPU\n\nMade by `python -m bench.cpu_policies "
          f"--cases {args.cases} --policies {args.policies} --steps {args.steps} --budgets {args.budgets}`:\nmedians "
          "of a step; shares of the unmanaged speed and of the unmanaged processor time, in turns. Lost: seconds that "
          "kernels\nlose to a second of copies, as measured on this device; first plan in seconds, planning as a share "
          "of the run.\n")
    print("| network | batch | MB | policy | s | share | the link allows | kernels, ms | copies, ms | host, ms "
          "| share of processor time | MB out | MB in | lost | first plan, s | planning |")
    print("|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in args.cases.split(","):
        name, batch = case.split(":")
        for percent in args.budgets.split(","):
            rows(name, int(batch), args.policies.split(","), args.steps, int(percent))


if __name__ == "__main__":
    main()
