"""Finds out with dry runs whether a batch fits a budget, and searches for the smallest budget. The device runs nothing.

A trial is a dry run of a few iterations on a twin: the device's profile and algorithms, the budget and the policy, with
shapes instead of values. It runs out of memory if the real device would in these iterations; on a real device, later
plans from measured times may differ. A search starts from ``demand``, the bytes that one dry run without a budget
needs. It assumes that if a batch fits, so do smaller batches (``largest``) and larger budgets. Each answer was tried.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from minidl import placements, policies
from minidl.cli.app.trials import PLAN, OutOfWork, Shortage, Trial, Work
from minidl.device import Device
from minidl.device.precision import DEFAULT
from minidl.device.spill import Spill
from minidl.errors import OutOfMemory, Unsuitable, UserError
from minidl.memory.ledger import Demand
from minidl.memory.switches import ALL_ON, Switches
from minidl.meta import ALIGNMENT
from minidl.outside.stages import stage
from minidl.outside.units import UNLIMITED, format_bytes
from minidl.plan.policy import Policy
from minidl.ranks import Ranks
from minidl.runtime import Runtime

ITERATIONS = 2  # of steps: the first has no gradients yet; from the second on all are alike
MOST_ITERATIONS, ALIKE = 200, 3  # where blocks stay where they are put: until so many in a row leave the same holes
NEARLY_FULL, WITH_FULL_HOST = 0.9, 8  # of the host's memory; iterations
FIRST_BUDGET_STEP = 1 << 20  # bytes; where a search for the smallest budget begins


class TrainingParts(NamedTuple):
    """The parts of a training that take memory: a training step, and the evaluation of a test batch, if there is one.
    Both are functions that can run on shapes alone; they keep no tensors when they return."""

    step: Callable[[], Any]
    test: Callable[[], Any] | None = None

    def all(self) -> None:
        """Run a training step and, if there is one, the evaluation."""
        self.step()
        if self.test is not None:
            self.test()


Program = Callable[[int], TrainingParts]


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that decide what fits, without the batch and the budget, which its methods take as arguments.

    program      makes the model for a batch in the current runtime, and returns its TrainingParts
    device       provides its profile and algorithms; it executes nothing
    host_memory  bytes of host memory, for swapped tensors and for the input batches that are loaded in advance
    ahead        a function: batch size -> bytes of the input batches that are loaded in advance
    steps        the most steps that will be trained: a thorough trial stops there, or a few steps later
    switches     the optional features of the engine that are on
    slices       number of slices of a batch
    spill        the spill file, which continues host memory on a disk; or None
    shard_bytes  parameters larger than this are cut into shards of at most this size; None: none are cut
    host_update  True if the optimizer's states are in host memory, and are updated there
    ranks        the ranks that train together; the dry runs are those of the first rank, which has the largest slice
    work         the limit on the total work of all trials of a search
    """

    program: Program
    device: Device
    policy: str
    host_memory: int
    precision: str = DEFAULT
    seed: int = 0
    placement: str = placements.DEFAULT
    ahead: Callable[[int], int] = lambda batch: 0
    switches: Switches = ALL_ON
    slices: int = 1
    steps: int = MOST_ITERATIONS
    spill: Spill | None = None
    shard_bytes: int | None = None
    host_update: bool = False
    ranks: Ranks | None = None
    work: Work = field(default_factory=Work, compare=False)

    def for_tensors(self, batch: int) -> int:
        """Return the bytes of host memory that swapped tensors may use, after the input batches loaded in advance."""
        return max(self.host_memory - self.ahead(batch), 0)

    def elsewhere_for(self, batch: int) -> int:
        """Return the bytes of host memory and spill file that swapped tensors may use at this batch size."""
        return self.elsewhere - self.host_memory + self.for_tensors(batch)

    def demand(self, batch: int, *, timed: bool = False) -> Demand:
        """Return the bytes that an unmanaged step of this batch needs, and its largest operation, from a dry run.
        timed: True allows the device to time the algorithms of its operations, as it does before a training.
        Raises OutOfWork if the limit of work is reached, and is one that ends trials."""
        self.work.go_on()
        keeps = policies.create(self.policy).regime.keeps_outputs  # then it needs more
        with (stage(f"dry run of {self._named(batch)}"),
              Runtime(self.device.dry_twin(timed=timed), memory_budget=UNLIMITED, host_memory=UNLIMITED,
                      policy=self.policy if keeps else "none", precision=self.precision, seed=self.seed,
                      switches=self.switches, slices=self.slices, shard_bytes=self.shard_bytes,
                      host_update=self.host_update, ranks=self.ranks) as twin):
            found = twin.dry_run(self.program(batch).all)
        self.work.spent += found.calls
        self.work.calls[self.slices] = found.calls
        return found

    def largest_parameter(self) -> int:
        """Return the bytes of the largest parameter, buffer or optimizer state."""
        with Runtime(self.device.dry_twin(timed=False), memory_budget=UNLIMITED, policy="none",
                     precision=self.precision) as twin:
            held = self.program(1)
            largest = max((storage.nbytes for storage in twin.memory.live() if storage.persistent), default=0)
            del held
        return largest

    @property
    def elsewhere(self) -> int:
        """The bytes of host memory and of the spill file together."""
        return self.host_memory + (self.spill.nbytes if self.spill else 0)

    @property
    def drifts(self) -> bool:
        """True if blocks of memory are never moved, so that holes may differ from one iteration to the next."""
        return not placements.create(self.placement).compacts

    def trial(self, batch: int, budget_bytes: int, *, thorough: bool = True, planned: bool = False) -> Trial:
        """Run a few iterations on a twin and return their outcome.
        thorough: run more if host memory is nearly full, and as long as holes differ between iterations. On a
        simulated device these runs follow the policy's plans, too; plans for real devices depend on times that are
        measured only in the run. planned: the policy makes a plan in any case, and may refuse the step."""
        simulated = self.device.simulated_twin() if thorough or planned else None
        found = self._tried(simulated if self.drifts or planned else None, batch, budget_bytes, thorough, planned)
        plans = simulated is not None and not (self.drifts or planned) and policies.create(self.policy).plans
        if plans and found.shortage is None and found.host_nearly_full:  # what a plan keeps there differs
            found = replace(found, shortage=self._tried(simulated, batch, budget_bytes, thorough).shortage)
        return found

    def _tried(self, simulated: Device | None, batch: int, budget_bytes: int, thorough: bool, planned: bool = False
               ) -> Trial:
        """Return the outcome of a trial. simulated: a twin with modelled times, on which the policy's plans run, too.
        None: a twin without times, where nothing is planned. planned: run at least until the first plan is made."""
        self.work.go_on()
        device = simulated or self.device.dry_twin(timed=False)
        twin = self._twin(device, batch, budget_bytes)
        begin = self.work.count(device, self.slices, lambda: twin.memory.state.walks.calls, trial=True)
        shortage = stats = None
        under = stage(lambda: f"trying {self._named(batch)} in {format_bytes(budget_bytes)}, call "
                              f"{twin.executor.issued:,}")

        def nearly_full() -> bool:
            return twin.stats().host_peak_bytes > NEARLY_FULL * self.elsewhere_for(batch)

        try:
            with under, twin:
                if simulated is None:
                    twin.stay_on_demand()
                steps = self.program(batch)
                for _ in range(twin.guide.iterations_to_follow - 1 if planned and twin.guide else ITERATIONS):
                    begin()
                    steps.step()
                stats = twin.stats()
                if steps.test is not None:
                    begin()
                    steps.test()
                    begin()
                    steps.step()
                if thorough and nearly_full():
                    for _ in range(ITERATIONS, min(self.steps, WITH_FULL_HOST)):
                        begin()
                        steps.step()
                if thorough and self.drifts:
                    _run_until_alike(twin, steps, begin, most=min(self.steps, MOST_ITERATIONS))
        except OutOfMemory as error:
            shortage = Shortage(error.op, error.host_full)
        except OutOfWork:
            shortage = Shortage("", host_full=False, slow=True)
        except Unsuitable as error:
            shortage = Shortage("", host_full=False, refused=str(error))
        stats = stats or twin.stats()
        return Trial(shortage, stats.swapped_out_bytes, stats.recomputed_bytes, nearly_full())

    def _twin(self, device: Device, batch: int, budget_bytes: int, policy: Policy | None = None) -> Runtime:
        """Return a runtime on the twin ``device`` with the memory that a run with this batch and budget would have.
        policy: what manages it, instead of the setup's."""
        return Runtime(device, memory_budget=budget_bytes, host_memory=self.for_tensors(batch),
                       policy=self.policy if policy is None else policy,
                       placement=self.placement, precision=self.precision, seed=self.seed, switches=self.switches,
                       slices=self.slices, spill=self.spill, shard_bytes=self.shard_bytes,
                       host_update=self.host_update, ranks=self.ranks)

    def planned_seconds(self, batch: int, budget_bytes: int) -> float | None:
        """Return the modelled seconds of a step under the policy's first plan.
        Infinite if it does not fit, or the limit of work is reached; None without plans or a simulated device."""
        return self.managed_seconds(batch, budget_bytes) if policies.create(self.policy).plans else None

    def managed_seconds(self, batch: int, budget_bytes: int) -> float | None:
        """Return the modelled seconds of a step under the policy's first plan; without plans, of the second step.
        ``auto`` makes this plan by one short search. If it makes none, or the limit of work is reached, those of the
        last step. Infinite if a step does not fit or launches too many replays; None if the device is not simulated."""
        simulated = self.device.simulated_twin()
        if simulated is None:
            return None
        policy = policies.hurried(self.policy)
        self.work.spent += PLAN if policy.plans else 0
        try:
            with (stage(f"timing {self._named(batch)}{' under a plan' if policy.plans else ''}"),
                  self._twin(simulated, batch, budget_bytes, policy) as twin):
                begin = self.work.count(simulated, self.slices, lambda: twin.memory.state.walks.calls)
                step = self.program(batch).step
                for _ in range(twin.guide.iterations_to_follow if twin.guide else ITERATIONS):
                    before = twin.stats()
                    begin()
                    step()
                    followed = twin.followed()
                    if followed is not None and followed[1].plan.evictions:
                        return followed[1].seconds
                    if self.work.over:
                        break
                return twin.stats().since(before).seconds
        except (OutOfMemory, OutOfWork, Unsuitable):
            return inf

    def unmanaged_seconds(self, batch: int) -> float | None:
        """Return modelled seconds of a step with unlimited memory; None for a device that is not simulated."""
        unused = self.device.simulated_twin()
        if unused is None:
            return None
        with (stage(f"timing {self._named(batch)} with unlimited memory"),
              Runtime(unused, memory_budget=UNLIMITED, policy="none", precision=self.precision, seed=self.seed,
                      switches=self.switches, ranks=self.ranks) as runtime):
            step = self.program(batch).step
            step()
            start = runtime.stats().seconds
            step()
            return runtime.stats().seconds - start

    def _named(self, batch: int) -> str:
        return f"batch {batch:,}" + (f" in {self.slices} slices" if self.slices > 1 else "")

    def needed_bytes(self, demand: Demand) -> int:
        """Return the budget, in bytes, below which no step with this demand can run, whatever tensors leave."""
        manages = policies.create(self.policy).moves_tensors
        needed = demand.largest_op_bytes if manages else demand.unmanaged_peak_bytes
        return needed + self.device.reserved_bytes

    def short_of_host(self, batch: int, budget_bytes: int, recomputed_bytes: int) -> bool:
        """Return True if the policy would recompute less than ``recomputed_bytes`` with unlimited host memory.
        False for a policy that chooses to recompute by itself."""
        if not recomputed_bytes or policies.create(self.policy).weighs_recomputation:
            return False
        roomy = replace(self, host_memory=UNLIMITED).trial(batch, budget_bytes)
        return roomy.recomputed_bytes < recomputed_bytes


def _run_until_alike(twin: Runtime, steps: TrainingParts, begin: Callable[[], None], *, most: int) -> None:
    """Run up to ``most`` steps, each with an evaluation, until ALIKE in a row leave blocks and plan as they were.
    Raises OutOfMemory if one finds no room."""
    alike, before = 0, None
    for _ in range(most):
        begin()
        steps.all()
        left = [(block.offset, block.size) for block in twin.memory.arena.blocks()], id(twin.plan)
        alike = alike + 1 if left == before else 0
        if alike == ALIKE:
            return
        before = left


def smallest_budget(setup: Setup, batch: int) -> int:
    """Return the smallest budget, in bytes, in which a step of this batch runs, exact to 256 bytes.
    If blocks are never moved, it may be larger, so that later iterations with other holes run, too. Raises OutOfWork if
    the setup's limit of work is reached, and is one that ends trials; UserError if no budget would do."""
    def fits(budget_bytes: int, *, thorough: bool = False) -> bool:
        return setup.trial(batch, budget_bytes, thorough=thorough).shortage is None

    with stage(f"searching the smallest budget for batch {batch:,}"):
        return _smallest(setup, batch, fits)


def _smallest(setup: Setup, batch: int, fits: Callable[..., bool]) -> int:
    enough = setup.needed_bytes(setup.demand(batch))
    if fits(enough, thorough=True):
        return enough
    # Fragmentation, or a full host: what is needed at once was not enough.
    too_little, step = enough, FIRST_BUDGET_STEP
    while not fits(enough := too_little + step):
        if enough > UNLIMITED:
            raise UserError("no memory budget would do")
        too_little, step = enough, 2 * step
    while enough - too_little > ALIGNMENT:
        middle = (too_little + enough) // (2 * ALIGNMENT) * ALIGNMENT
        too_little, enough = (too_little, middle) if fits(middle) else (middle, enough)
    step = FIRST_BUDGET_STEP
    while setup.drifts and not fits(enough, thorough=True):
        enough, step = enough + step, 2 * step
    return enough
