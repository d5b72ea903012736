"""The memory of a PyTorch program: ``managed`` around a training that nobody changes keeps it within a budget.

Hooks on saved tensors stand in the way of all that autograd keeps. A step ends when an optimizer has stepped, as
PyTorch's own global hook tells, or where the program says ``memory.step()``. Between steps plans are made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from minidl import policies
from minidl.errors import UserError
from minidl.outside.units import parse_bytes
from minidl.plan.costs import Costs, Limits
from minidl.plan.policy import Policy, required
from minidl.planning.allowance import Allowance
from minidl.torch.backends import Backend, Immediate
from minidl.torch.budget import lasting_of, refuse
from minidl.torch.correcting import corrected
from minidl.torch.course import Course, Known, Phase
from minidl.torch.dropping import Dropping
from minidl.torch.fitting import Point, fit
from minidl.torch.planned import Obeyed, everything, obeyed, proposed, swapping, unmanaged
from minidl.torch.recorder import Recorder
from minidl.torch.reporting import Report
from minidl.torch.saved import Saved
from minidl.torch.tracing import Notes, Seen

ENDLESS = 1 << 60
F = TypeVar("F", bound=Callable[..., Any])


class managed:  # noqa: N801 # it is used as a function is
    """Keep what runs inside within a budget of device bytes, with the bits that it has without.

    A context, a decorator, or ``start()`` and ``stop()``. Raises BudgetTooSmall after the second step where the step
    does not fit with all saved tensors away.
    """

    def __init__(self, budget: str | int, *, policy: str | Policy = "auto", host: str | int | None = None,
                 device: str | None = None, recompute: bool = True, backend: Backend | None = None) -> None:
        """budget, host: bytes on the device, and of the host for copies (None: no limit). device: the type whose
        tensors are managed; None: ``cuda`` where there is one, else ``cpu``. recompute: whether plans may drop what can
        be computed again. Raises UserError for a size or a policy that there is not."""
        self.budget = _bytes("budget", budget)
        host_bytes = ENDLESS if host is None else _bytes("host", host)
        self.policy = policies.create(policy) if isinstance(policy, str) else required(policy)
        self.limits = Limits(self.budget, host_bytes, addresses=False)
        self.recompute = recompute
        self.backend: Backend = Immediate(host_bytes) if backend is None else backend
        device_type = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.course = Course()
        self.saved = Saved(self.backend, device_type, self.course)
        self.recorder = Recorder(device_type, perf_counter if device_type == "cpu" else _when_done)
        self.dropping = Dropping(self.saved, self.recorder)
        # Recording lineage takes time from a program that computes on the processor that it runs on.
        self.counts_recording = device_type == "cpu"
        self._notes: Notes | None = None
        self._hooks: Any = None
        self._handles: list[Any] = []
        self._lasting: list[torch.Tensor] = []
        self._began = self._stalled = 0.0
        self._thread = 0  # in which it was started
        self.allowance = Allowance(perf_counter, limited=True)
        self._report = Report(self.budget)

    # Around a program ------------------------------------------------------------------------------------------------
    def start(self) -> managed:
        """From here on. Raises UserError if it is on already."""
        if self._hooks is not None:
            raise UserError("this memory is managed already: stop() comes before another start()")
        self.course.left, self._thread = False, get_ident()
        self._handles = [register_optimizer_step_pre_hook(self.dropping.rest),
                         register_optimizer_step_post_hook(self._stepped)]
        self._hooks = saved_tensors_hooks(self.saved.pack, self.saved.unpack)
        self._hooks.__enter__()
        self._begin()
        return self

    def stop(self) -> None:
        """Up to here. What autograd still keeps comes back when it is wanted."""
        if self._hooks is None:
            return
        self._hooks.__exit__()
        for handle in self._handles:
            handle.remove()
        self._hooks = None
        self._notes = self.saved.watch = None
        self.recorder.leave()
        self.course.left = True
        self.course.phase = Phase.AWAY

    def __enter__(self) -> managed:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __call__(self, function: F) -> F:
        """A function whose every call is managed."""
        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)
        return around  # type: ignore[return-value]

    # Steps -----------------------------------------------------------------------------------------------------------
    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if get_ident() != self._thread and torch._C._current_graph_task_id() == -1:
            return  # another thread's training, which hooks of this one do not see
        self._lasting = lasting_of(optimizer)
        # An optimizer that steps in the midst of a backward pass ends no step: the pass goes on.
        if torch._C._current_graph_task_id() != -1:
            self.saved.before, self.course.staying = self.step, ()
        else:
            self.step(optimizer)

    def step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """A step has ended here. Raises BudgetTooSmall."""
        self.saved.before = None
        packs = self.saved.packs
        if not packs or self._hooks is None:
            return
        seconds = perf_counter() - self._began
        phase, self.recorder.on, self.recorder.lineage = self.course.phase, False, False
        expected = self.course.expected
        known = self.course.end(packs)
        self._report.stepped(phase, seconds, self.saved, known)
        try:
            self.allowance.run_seconds += seconds
            if phase is Phase.MEASURED and known is expected and self._notes is not None:
                self._plan(known, optimizer)
            elif phase is Phase.GUIDED and known is expected:
                self._correct(known, seconds)
        finally:
            self._begin()

    def _plan(self, known: Known, optimizer: torch.optim.Optimizer | None) -> None:
        assert self._notes is not None
        seen = known.seen = self._notes.seen()
        costs = self.backend.traffic.costs(self.backend.contention)
        known.floor_bytes = everything(seen, costs, self.limits)
        self._report.measured(unmanaged(seen.trace), known.floor_bytes)
        if known.floor_bytes > self.budget:
            refuse(self.budget, known.floor_bytes, seen, optimizer)
        with self.allowance.planning(exempt=True):
            known.obey(self._cheaper(known, seen, costs))

    def _cheaper(self, known: Known, seen: Seen, costs: Costs) -> Obeyed:
        """The policy's plan; or the one without drops, if recording lineage would cost more than these gain."""
        plan = self._planned(known, seen, costs)
        if plan.drops and self.counts_recording:
            proposal, swaps = known.proposal, self._planned(known, swapping(seen), costs)
            if plan.seconds <= swaps.seconds or swaps.over_bytes > plan.over_bytes:
                known.proposal = proposal
            else:
                known.seen, plan = swapping(seen), swaps
        return plan

    def _correct(self, known: Known, seconds: float) -> None:
        """Let the policy see how its plan did."""
        costs = self.backend.traffic.costs(self.backend.contention)
        stalled = self.backend.traffic.stalled_seconds - self._stalled
        found = corrected(self.policy, known, costs, self.limits, seconds=seconds, stalled=stalled,
                          late=self.saved.late_ids if self.backend.contention < 1.0 else {}, allowance=self.allowance)
        if found is not None and known.seen is not None:
            same = known.proposal is not None and known.proposal.plan is found.plan
            known.proposal = found
            if not same:
                known.obey(obeyed(found.plan, known.seen, costs, self.limits, recompute=self.recompute))

    def _planned(self, known: Known, seen: Seen, costs: Costs) -> Obeyed:
        known.proposal = proposed(self.policy, seen, costs, self.limits)
        return obeyed(known.proposal.plan, seen, costs, self.limits, recompute=self.recompute)

    def _begin(self) -> None:
        self.course.begin()
        self._notes = self.saved.watch = None
        self.recorder.listener = None
        measured = self.course.phase is Phase.MEASURED
        plan: Obeyed | None = self.course.expected.obeyed if self.course.expected is not None else None
        drops = self.course.phase is Phase.GUIDED and plan is not None and plan.drops
        if measured:
            self.recorder.enter()
            self.dropping.end()
            self._notes = Notes(self.recorder, self.recorder.begin(self._lasting))
            self.recorder.listener = self.saved.watch = self._notes
            self.recorder.on = True
        elif drops:
            self.recorder.enter()
            self.recorder.begin()
            assert plan is not None
            self.dropping.begin(plan.replayed)
        else:
            self.recorder.leave()
            self.dropping.end()
        self.saved.begin()
        self._lasting = []
        self._began, self._stalled = perf_counter(), self.backend.traffic.stalled_seconds

    # What is known ---------------------------------------------------------------------------------------------------
    def report(self) -> Report:
        """What it has come to so far."""
        return self._report.now(self.backend, self.dropping.replay.calls, self.course)

    def fit(self) -> list[Point]:
        """Budgets from the floor to what a step takes by itself, and what a step is predicted to take in each. Raises
        UserError before the second step has ended."""
        seen = next((known.seen for known in reversed(self.course.known) if known.seen is not None), None)
        if seen is None:
            raise UserError("no step has been recorded yet: fit() is known when the second step has ended")
        costs = self.backend.traffic.costs(self.backend.contention)
        return fit(seen, self.policy, costs, self.limits, recompute=self.recompute)


def _when_done() -> float:
    """The time at which all that a GPU was asked for has been done."""
    torch.cuda.synchronize()
    return perf_counter()


def _bytes(what: str, size: str | int) -> int:
    nbytes = parse_bytes(size) if isinstance(size, str) else size
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes <= 0:
        raise UserError(f"{what} is a number of bytes or a size like '12GiB', not {size!r}")
    return nbytes
