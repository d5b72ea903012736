"""One cell of an experiment: a trace that runs on a modelled machine, in a budget, under a policy. Its result is a row.

If a policy refuses, or an operation finds no memory, the row's ``status`` says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any

from minidl import placements, policies
from minidl.device import profiles, simulators
from minidl.device.profiles import Profile
from minidl.device.spill import Spill
from minidl.errors import OutOfMemory, Unsuitable, UserError
from minidl.lab.row import CellResult
from minidl.lab.traced import TracedDevice, TracedProgram
from minidl.lab.training_step import SEPARATE, USUAL, Setting, training_step
from minidl.memory.switches import ALL_ON
from minidl.op import READ
from minidl.outside.stages import stage
from minidl.outside.units import MOST_SHARE, UNLIMITED, format_bytes
from minidl.placements import DEFAULT, Placement, Unplaced
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.planning.allowance import Allowance
from minidl.ranks import modelled
from minidl.runtime import Runtime
from minidl.runtime.stats import Stats

MOST_STEPS = 60  # at most; fewer once so many in a row took the same time under the same plan,
ALIKE, ALIKE_WITHOUT_PLAN = 4, 2
MOST_UNCHANGED = 8  # and no more than so many under one plan: those may take turns at two times, or at three, for good
NOISE = 1e-9  # what two seconds differ by that are the same


@dataclass(frozen=True)
class Machine:
    """The modelled machine on which a trace runs: a device profile, and values that replace some of its numbers.

    None replaces nothing. link: bytes per second to the host and back; latency: of a copy, in seconds; host_bytes: host
    memory; spill_bytes: of a file on a disk behind it. placement: the choice of addresses, by name, or "none" for a
    memory without addresses, in which only bytes are counted. noise: the largest relative random error of a call's
    seconds; seed: the seed of these errors. ranks: number of such devices behind one switch, of which this is one: it
    has a share of the host's bandwidth and memory (``profiles.shared``). recomputes: False if no call may run again, so
    that tensors can only be swapped.
    """

    profile: str = "p100"
    link: tuple[float, float] | None = None
    latency: float | None = None
    host_bytes: int | None = None
    noise: float = 0.0
    seed: int = 0
    placement: str = DEFAULT
    spill_bytes: int = 0
    ranks: int = 1
    recomputes: bool = True

    def described(self) -> Profile:
        """Return the profile of the machine, with the replaced values. Raises UserError for an unknown profile."""
        found = profiles.named(self.profile.removeprefix("sim:"))
        if self.link is not None:
            found = replace(found, link_out_bandwidth=self.link[0], link_in_bandwidth=self.link[1])
        if self.latency is not None:
            found = replace(found, link_latency_s=self.latency)
        return profiles.shared(found, self.ranks)

    @property
    def host_memory(self) -> int:
        """The bytes of host memory that this device may use: the given ones, or its share of its machine's."""
        return self.described().host_memory_bytes // self.ranks if self.host_bytes is None else self.host_bytes

    @property
    def file(self) -> Path | None:
        """The file of the profile, if it is one of the user's."""
        return Path(self.profile.removeprefix("sim:")) if self.profile.endswith(".json") else None

    def placed(self) -> Placement:
        """Return a new placement of the machine. Raises UserError for an unknown name."""
        return Unplaced() if self.placement == Unplaced.name else placements.create(self.placement)


@dataclass(frozen=True)
class RankedNetwork:
    """A network that several devices train, as many as ``Machine.ranks``, each with ``batch`` examples.

    Its training step runs in place of its trace, because a trace does not say how long exchanges run beside other work.
    name: the network's. fused: False to run it without fused operations. setting: the step's, but for its number of
    ranks: that is ``Machine.ranks``."""

    name: str
    batch: int
    fused: bool = True
    setting: Setting = USUAL


def unmanaged(trace: Trace, machine: Machine, network: RankedNetwork | None = None) -> tuple[float, int]:
    """Return the seconds of an iteration with unlimited memory, and its peak in bytes.
    network: what runs in place of ``trace``, if there are several ranks."""
    return _unmanaged(_Same(trace), replace(machine, noise=0.0, placement=DEFAULT, spill_bytes=0,
                                              recomputes=True), network)


class _Same:
    """A trace that is compared by identity, so that it can be the key of a cache."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __hash__(self) -> int:
        return id(self.trace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.trace is self.trace


@lru_cache(maxsize=8)
def _without_recomputation(same: _Same) -> Trace:
    """Return the trace with calls of which none may run again."""
    return replace(same.trace, calls=tuple(replace(call, replayable=False) for call in same.trace.calls))


@lru_cache(maxsize=8)
def _unmanaged(same: _Same, machine: Machine, network: RankedNetwork | None) -> tuple[float, int]:
    with _runtime(same.trace, machine, network, policy="none", memory_budget=UNLIMITED, host_memory=0) as runtime:
        steps = _steps(runtime, _step(same.trace, machine, network), most=2)
    return steps[-1].seconds, steps[-1].peak_bytes


def _runtime(trace: Trace, machine: Machine, network: RankedNetwork | None, **memory: Any) -> Runtime:
    """Return a runtime on the machine, for the trace or the network. memory: further arguments of ``Runtime``."""
    profile = machine.described()
    if network is None:
        return Runtime(device=TracedDevice(profile, trace, noise=machine.noise, seed=machine.seed), **memory)
    exact = profiles.without_tf32(profile)  # as traces are taken
    return Runtime(device=simulators.create(f"sim:{profile.name}", exact), ranks=modelled(machine.ranks),
                   precision=network.setting.precision, switches=ALL_ON if network.fused else SEPARATE, **memory)


def _step(trace: Trace, machine: Machine, network: RankedNetwork | None) -> Callable[[], None]:
    """Return a function that runs the trace's calls, or a step of the network, in the current runtime."""
    if network is None:
        return TracedProgram(trace).step
    return training_step(network.name, network.batch * machine.ranks, setting=network.setting)


def run(name: str, trace: Trace, machine: Machine, policy: str | Policy, budget: int | float, *,
        steps: int | None = None, instants: int = 0, network: RankedNetwork | None = None) -> CellResult:
    """Run a trace, called ``name`` in the row, on a machine under a policy (an object or its name); return the row.
    budget: bytes, or a share of the unmanaged peak. steps: the most iterations. instants: as in
    ``bound_seconds``; 0: no bound. network: what runs in place of the trace, if there are several ranks.
    Calls of ``network`` may always run again. Raises UserError for an unknown profile, policy or placement; a run that
    finds no room has a status that says so."""
    made = policies.create(policy)
    row = blank(name, trace, machine, policy, budget, network)
    if instants:
        row = replace(row, bound_s=bound_seconds(trace, machine, row.budget_bytes, instants))
    if not machine.recomputes:
        trace = _without_recomputation(_Same(trace))
    try:
        with (stage(f"{name} under {row.policy} in {format_bytes(row.budget_bytes)} on {row.device}"),
              _runtime(trace, machine, network, policy=made, memory_budget=row.budget_bytes,
                       host_memory=machine.host_memory, placement=machine.placed(),
                       spill=Spill("", machine.spill_bytes) if machine.spill_bytes else None) as runtime):
            return _ran(row, runtime, _step(trace, machine, network), steps)
    except OutOfMemory as error:
        return replace(row, status=f"no room: {error}")
    except Unsuitable as error:
        return replace(row, status=f"cannot: {error}")


def blank(name: str, trace: Trace, machine: Machine, policy: str | Policy, budget: int | float,
          network: RankedNetwork | None = None) -> CellResult:
    """Return the row of a cell that has not run; it has no results yet. The arguments are those of ``run``.
    Its policy has the name by which it was asked for: two classes of a user may have one ``name``."""
    seconds, peak = unmanaged(trace, machine, network)
    nbytes = in_bytes(budget, peak)
    called = policies.REGISTRY.current(policy) if isinstance(policy, str) else policy.name
    return CellResult(name, machine.described().name, called, nbytes, nbytes / peak, seconds,
                      placement=machine.placement, ranks=machine.ranks)


def in_bytes(budget: int | float, peak: int) -> int:
    """Return a budget in bytes. An int is bytes already; a float is a share of ``peak``, the unmanaged peak.
    Raises UserError for less than a byte, and for a share above MOST_SHARE."""
    share = not isinstance(budget, Integral)  # NumPy's integers are bytes, too
    nbytes = 0 if share and not 0 < budget <= MOST_SHARE else int(budget * peak if share else budget)
    if nbytes < 1:
        raise UserError(f"the budget must be a share of at most {MOST_SHARE:g}, or an int of bytes, and give at least "
                        f"1 byte, not {budget}")
    return nbytes


def _ran(row: CellResult, runtime: Runtime, step: Callable[[], None], steps: int | None) -> CellResult:
    guide = runtime.guide
    if guide is not None:
        guide.planner.allowance = Allowance(perf_counter, limited=False)
    ran = _steps(runtime, step, most=steps or MOST_STEPS, settles=True)
    runtime.check()
    last, plan = ran[-1], runtime.plan
    return replace(
        row, first_s=ran[0].seconds, settled_s=last.seconds,
        predicted_s=None if plan is None else plan.predicted_seconds,
        stall_seconds=last.stall_seconds, recompute_seconds=last.recompute_seconds, slid_seconds=last.slid_seconds,
        slower_seconds=last.slower_seconds, out_bytes=last.swapped_out_bytes,
        in_bytes=last.swapped_in_bytes, peak_bytes=last.peak_bytes, host_peak_bytes=last.host_peak_bytes,
        planning_s=0.0 if guide is None else guide.allowance.seconds, steps=len(ran))


def _steps(runtime: Runtime, step: Callable[[], None], *, most: int, settles: bool = False) -> list[Stats]:
    """Run at most ``most`` iterations; return the counters of each. ``settles``: stop once nothing changes any more."""
    ran: list[Stats] = []
    answers: list[object] = []  # of the policy: a search may go on behind a plan that stays
    alike = ALIKE_WITHOUT_PLAN if runtime.guide is None else ALIKE
    before = runtime.stats()
    with stage(lambda: f"iteration {len(ran) + 1} of at most {most}"):
        while len(ran) < most:
            with runtime.iteration():
                step()
            now = runtime.stats()
            ran.append(now.since(before))
            active = None if runtime.guide is None else runtime.guide.active
            answers.append(None if active is None else active.proposal)
            before = now
            if settles and (_unchanged(answers, MOST_UNCHANGED) or (
                    len(ran) > alike and _unchanged(answers, alike) and _same([s.seconds for s in ran[-alike:]]))):
                break
    return ran


def _unchanged(answers: Sequence[object], count: int) -> bool:
    """True if the last ``count`` of a policy's answers are one and the same object."""
    return len(answers) >= count and all(answer is answers[-1] for answer in answers[-count:])


def _same(seconds: Sequence[float]) -> bool:
    return max(seconds) - min(seconds) <= NOISE * seconds[-1]


def bound_seconds(trace: Trace, machine: Machine, budget_bytes: int, instants: int) -> float:
    """Return a lower bound of an iteration's seconds under any plan, from memory at ``instants`` points in time.
    The bound is infinite if no plan can fit the budget."""
    return _bound_seconds(_Same(trace), machine, budget_bytes, instants)


@lru_cache(maxsize=64)
def _bound_seconds(same: _Same, machine: Machine, budget_bytes: int, instants: int) -> float:
    from minidl.planning.bound import bound  # it takes NumPy and SciPy

    profile = machine.described()
    trace = same.trace if machine.recomputes else _without_recomputation(same)
    with stage(f"computing the bound at {instants} instants"):
        return bound(trace, profile.link_costs, budget_bytes, instants=instants,
                     launch_seconds=profile.launch_overhead_s,
                     launches=sum(call.op != READ.name for call in trace.calls)).seconds
