"""Small random programs of one kind of operation, run on a simulated device: traces for planners, and their referee.

An operation reads some tensors and makes one, with a size and a duration that are drawn; what its last reader has read
is freed. A device without overheads makes the durations exact, so a trace's times are those of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from minidl import Runtime
from minidl.device.profiles import KINDS, Profile
from minidl.device.sim import SimDevice
from minidl.dispatch import apply, donate
from minidl.meta import Cost, Meta, float32, meta
from minidl.op import Op
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.policies.literature.exact.policy import Exact
from minidl.tensor import Tensor

MIB = 1 << 20
FLOPS = 1e12  # a second, of the device
UNLIMITED = 1 << 40


def _infer(*inputs: Meta, nbytes: int, seconds: float) -> Meta:
    return meta((nbytes // 4,), float32)


def _cost(inputs, outputs, attrs) -> Cost:
    return Cost(attrs["seconds"] * FLOPS, 0.0, "elementwise")


PLAIN = Op("work", _infer, _cost)
OVER = Op("work_over", _infer, _cost, donates=((0, 0),))  # may be written over its first input
ONCE = Op("work_once", _infer, _cost, replayable=False)


@dataclass(frozen=True)
class Work:
    """One call: the calls whose outputs it reads, bytes and seconds of its own."""

    op: Op
    reads: tuple[int, ...]
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Program:
    """Calls in order, and the link (bytes a second, each way) and budget of the device that runs them."""

    works: tuple[Work, ...]
    link: float
    budget: int = UNLIMITED

    def last_reader(self, tensor: int) -> int:
        return max((k for k, work in enumerate(self.works) if tensor in work.reads), default=tensor)

    def iterate(self, runtime: Runtime) -> None:
        """One iteration of a runtime of ``runtime``."""
        made: list[Tensor | None] = []
        with runtime.iteration():
            for k, work in enumerate(self.works):
                inputs = [made[t] for t in work.reads]
                if work.op is OVER and self.last_reader(work.reads[0]) == k:
                    inputs[0] = donate(inputs[0])
                made.append(apply(work.op, *inputs, nbytes=work.nbytes, seconds=work.seconds))
                del inputs
                for t in (*work.reads, k):
                    if self.last_reader(t) == k:
                        made[t] = None

    def runtime(self, policy: str | Policy, *, budget: int | None = None) -> Runtime:
        """A simulated device that takes exactly as long as the program says, under a policy."""
        profile = Profile("plain", "no overheads", UNLIMITED, FLOPS, FLOPS, 1e15, self.link, self.link, 0.0, 0.0, 0.0,
                          0.0, 0.0, UNLIMITED, dict.fromkeys(KINDS, 1.0))
        return Runtime(SimDevice("sim:plain", profile), policy=policy, memory_budget=budget or self.budget)

    def measured(self) -> tuple[Trace, int, int]:
        """The unmanaged trace, its most bytes in use, and the largest working set of a call."""
        with self.runtime("none", budget=UNLIMITED) as runtime:
            demand = runtime.dry_run(lambda: self.iterate(runtime))
            self.iterate(runtime)
            with runtime.iteration():
                pass
            return self._trace(runtime), demand.unmanaged_peak_bytes, demand.largest_op_bytes

    def _trace(self, runtime: Runtime) -> Trace:
        traces: list[Trace] = []
        end = runtime.executor.end_iteration
        runtime.executor.end_iteration = lambda **how: (traces.append(runtime.trace()), end(**how))
        self.iterate(runtime)
        return traces[0]

    def seconds(self, policy: str | Policy, *, iterations: int) -> float:
        """Device seconds of the last of several iterations. Raises OutOfMemory."""
        with self.runtime(policy) as runtime:
            for _ in range(iterations):
                before = runtime.stats()
                self.iterate(runtime)
                runtime.check()
            return runtime.stats().since(before).seconds


def random_program(rng: np.random.Generator, *, most: int = 12) -> Program:
    """6 to ``most`` tensors: a chain forth and back as in training, or calls that read what is near or far."""
    count = int(rng.integers(6, most + 1))
    there = count // 2 if rng.random() < 0.4 else count  # the others go back over these
    works: list[Work] = []
    for k in range(count):
        if k == 0:
            reads = []
        elif k < there:
            near = [k - 1] if there < count or rng.random() < 0.7 else []
            far = [] if there < count else rng.integers(0, k, int(rng.integers(0, 3))).tolist()
            reads = near + far or [int(rng.integers(0, k))]
        else:
            reads = [k - 1] + [t for t in (2 * there - 1 - k, 2 * there - 2 - k) if 0 <= t < k - 1]
        op = OVER if reads and rng.random() < 0.3 else ONCE if k == 0 and there < count else PLAIN
        nbytes = int(rng.integers(1, 17)) * MIB
        if op is OVER:
            nbytes = works[reads[0]].nbytes
        works.append(Work(op, tuple(dict.fromkeys(reads)), nbytes, float(rng.uniform(0.2, 2.0)) * 1e-3))
    return Program(tuple(works), link=float(10 ** rng.uniform(8.8, 10.8)))


@cache
def programs(count: int) -> tuple[tuple[Program, Trace, Costs], ...]:
    """The first random programs that have a plan: with budgets between their largest call and what they would use."""
    found: list[tuple[Program, Trace, Costs]] = []
    rng = np.random.default_rng(7)
    while len(found) < count:
        program = random_program(rng)
        trace, peak, least = program.measured()
        if least < peak:
            budget = int(rng.uniform(least, peak))
            costs = Costs(1 / program.link, 1 / program.link, 0.0)
            if Exact().plan(trace, costs, Limits(budget, UNLIMITED)) is not NO_PLAN:
                found.append((replace(program, budget=budget), trace, costs))
    return tuple(found)
