"""How long planning takes, on the wall clock of this machine, beside the speed of the plans (sim:p100).

    python -m bench.planning > bench/results/planning.md
    python -m bench.planning --first [bert-large,...]

The compiled search is loaded before anything is timed: its first compilation on a machine takes some 20 seconds more.
``--first``: processor seconds of the first plan alone, for each network in a process of its own.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter, process_time

from bench.support.plan_replay import BUDGETS, USUAL, unmanaged_peak
from bench.support.steps import unmanaged_step
from minidl import Runtime
from minidl.lab.training_step import BATCHES, training_step
from minidl.meta import int64
from minidl.models.resnet import Bottleneck, ResNet
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.outside.units import UNLIMITED
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Proposal
from minidl.plan.policy import Observation
from minidl.plan.trace import Trace
from minidl.policies.auto.policy import Auto
from minidl.policies.capuchin.policy import Capuchin

CASES = [("resnet50", 1014), ("resnet152", 798), ("vgg16", 350), ("bert-base", 450)]
DEPTHS = (1, 3, 10, 30, 100, 170)  # blocks in each of a ResNet's four stages
ITERATIONS = 24
HOST_BYTES = 256 * 10**9


class Timed(Auto):
    """The policy ``auto``, which adds the seconds of each of its plans to a list."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._clock = clock

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = self._clock()
        yield
        self.seconds.append(self._clock() - start)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        with self._timed():
            return super().plan(trace, costs, limits)

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        with self._timed():
            return super().feedback(proposal, observed)


class Thrice(Timed):
    """The policy ``auto``, which makes each first plan three times: two with its compiled code loaded.
    calls: of the trace that it planned."""

    calls = 0

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        self.calls = len(trace.calls)
        for _ in range(2):
            super().plan(trace, costs, limits)
        return super().plan(trace, costs, limits)


def first_plan(network: str) -> str:
    """Measure the first plan of a network, and return the row of the table.
    Its last columns are processor seconds: of the first call of this process, and loaded (the lesser of two)."""
    policy, percent = Thrice(process_time), BUDGETS.get(network, USUAL)[-1]
    with Runtime("sim:p100", policy=policy, memory_budget=unmanaged_peak(network) * percent // 100) as runtime:
        step = training_step(network, BATCHES[network])
        while not policy.seconds:
            with runtime.iteration():
                step()
    first, *loaded = policy.seconds[:3]
    return f"| {network} | {percent}% | {policy.calls:,} | {first:.2f} | {min(loaded):.2f} |"


def guided(name: str, batch: int, limit: float) -> tuple[Timed, list[float]]:
    """Train under ``auto``; return the policy, and each iteration's share of the unmanaged speed."""
    policy, shares = Timed(), []
    with Runtime("sim:p100", policy=policy) as runtime:
        step = training_step(name, batch)
        for _ in range(ITERATIONS):
            before = runtime.stats()
            with runtime.iteration():
                step()
            shares.append(100 * limit / runtime.stats().since(before).seconds)
    return policy, shares


def deep(depth: int) -> tuple[Trace, Costs]:
    """The trace of a ResNet with this many blocks in each stage."""
    with Runtime("sim:p100", policy="none", memory_budget=UNLIMITED) as runtime:
        model = ResNet(Bottleneck, (depth,) * 4)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        with runtime.iteration():
            images = runtime.tensor(None, shape=(32, 3, 224, 224))
            labels = runtime.tensor(None, shape=(32,), dtype=int64)
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            return runtime.trace(), runtime.device.profile.link_costs


def planned(trace: Trace, costs: Costs, budget: int) -> float:
    """Return the seconds that capuchin takes to make a plan: the least of three measurements."""
    times = []
    for _ in range(3):
        start = perf_counter()
        Capuchin().plan(trace, costs, Limits(budget, HOST_BYTES))
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    """Read the command line, and print the tables that it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", nargs="?", const=",".join(BATCHES), metavar="NETWORKS", help="first plans alone")
    networks = parser.parse_args().first
    if networks is None:
        every_plan()
    elif networks in BATCHES:
        print(first_plan(networks))
    else:
        print("| network | budget | calls | first call of a process | loaded |\n|---|--:|--:|--:|--:|", flush=True)
        for network in networks.split(","):
            subprocess.run([sys.executable, "-m", "bench.planning", "--first", network], check=True)


def every_plan() -> None:
    print("# Planning time\n\nMade by `python -m bench.planning`, in seconds of the wall clock; speeds are shares of "
          "the unmanaged one on sim:p100.\n")
    guided("resnet50", 250, 1.0)  # loads and, on a new machine, compiles
    print("| model | batch | `capuchin` | first plan of `auto` | its speed | all plans of `auto` | the fastest |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, batch in CASES:
        limit, trace, profile = unmanaged_step(partial(training_step, name=name, batch=batch))
        policy, shares = guided(name, batch, limit)
        alone = planned(trace, profile.link_costs, profile.memory_bytes)
        print(f"| {name} | {batch} | {alone:.2f} | {policy.seconds[0]:.2f} | {shares[2]:.1f}% "
              f"| {sum(policy.seconds):.1f} | {shares[-1]:.1f}% |", flush=True)
    print("\n`capuchin` over ever deeper ResNets, with 30% of what the accessed tensors hold:\n")
    print("| accesses | seconds | microseconds an access |\n|--:|--:|--:|")
    for depth in DEPTHS:
        trace, costs = deep(depth)
        held = sum(tensor.nbytes for tensor in trace.tensors.values())
        seconds = planned(trace, costs, int(0.3 * held))
        print(f"| {len(trace.accesses):,} | {seconds:.3f} | {1e6 * seconds / len(trace.accesses):.1f} |", flush=True)


if __name__ == "__main__":
    main()
