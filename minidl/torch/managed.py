"""``managed`` keeps the device memory of an unmodified PyTorch training within a budget.

Saved-tensor hooks intercept every tensor that autograd saves. A step ends when an optimizer has stepped, which
PyTorch's global hook reports, and autograd holds no saved tensor for another backward pass; or where the program calls
``memory.step()``. Plans are made between steps.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from minidl import policies
from minidl.errors import UserError, WrongKind
from minidl.plan.costs import Limits
from minidl.plan.policy import Policy
from minidl.planning.allowance import Allowance
from minidl.policies import beside
from minidl.torch.backends import Backend, Immediate
from minidl.torch.budget import SHARES, Fit, fit, size_of
from minidl.torch.course import Course, Phase
from minidl.torch.cuda import Cuda
from minidl.torch.deciding import Deciding
from minidl.torch.drawing import drawn
from minidl.torch.dropping import Dropping
from minidl.torch.early import Early
from minidl.torch.gauge import Gauge
from minidl.torch.planned import Obeyed
from minidl.torch.planner import Planner
from minidl.torch.recorder import Recorder
from minidl.torch.reporting import ROWS, Report, explanation, save_plan, save_trace
from minidl.torch.saved import Saved
from minidl.torch.states import States
from minidl.torch.tracing import Observer
from minidl.torch.unhooked import Unhooked
from minidl.view.packing import pack
from minidl.view.page import write_page

ENDLESS = 1 << 60
LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
F = TypeVar("F", bound=Callable[..., Any])


class managed:  # noqa: N801 # programs call it like a function
    """Keep the device memory of the code inside within a budget of bytes, without changing its results.

    Use it as a context manager, as a decorator, or by ``start()`` and ``stop()``. Raises BudgetTooSmall as soon as a
    step is known not to fit even if everything is evicted that can be: before an optimizer first changes anything, if
    its parameters and gradients exceed the budget; otherwise when a step of this kind has been recorded.
    """

    def __init__(self, budget: str | int, *, policy: str | Policy = "auto", host: str | int | None = None,
                 device: str | None = None, recompute: bool = True, states: bool = True,
                 backend: Backend | None = None) -> None:
        """Prepare the management that ``start()`` begins. Raises UserError for a bad size, device or policy.
        policy: a name or a Policy. budget, host: bytes on the device, and bytes of the host for copies (None: no
        limit). device: the type of the managed tensors, "cuda" or "cpu" (None: ``cuda`` if there is one, else ``cpu``).
        recompute: plans may drop tensors that can be recomputed. states: the optimizer's state may be on the host
        between steps. backend: makes the copies (None: the one for the device)."""
        self.budget = size_of("budget", budget)
        host_bytes = ENDLESS if host is None else size_of("host", host)
        self.limits = Limits(self.budget, host_bytes, addresses=False)
        device_type = _device_type(device)
        self.backend: Backend = backend or (Cuda if device_type == "cuda" else Immediate)(host_bytes)
        self.course = Course(self.budget)
        self.saved = Saved(self.backend, device_type, self.course)
        self.recorder = Recorder(device_type, perf_counter if device_type == "cpu" else _when_done)
        self.recorder.allocator = torch.cuda if device_type == "cuda" else None
        self.dropping = Dropping(self.saved, self.recorder)
        self.states = States(self.backend, device_type, on=states)
        self.saved.retreating = self._retreating
        # On a CPU the recording of lineage takes time from the program's own computation.
        self.planner = Planner(policies.create(policy), recompute=recompute, counts_recording=device_type == "cpu")
        if self.planner.policy.plans:
            beside.begin()
        self.observer = Observer(self.recorder, self.saved, self.states)
        self.early = Early(self.budget, self.states)
        self.unhooked = Unhooked(self.saved, self.course, self.budget)
        self.gauge = Gauge(self.recorder.allocator, self.course, self.states)
        self._handles: list[Any] = []
        self._stepped_in: list[torch.optim.Optimizer] = []  # those that have stepped in the current step
        self._ending: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # their steps always end a step
        self._began = self._stalled = 0.0
        self._thread = 0  # the thread that called start()
        self.allowance = Allowance(perf_counter, limited=True)
        self._report = Report(self.budget)
        self.deciding = Deciding(self.planner, self.states, self.backend, self.limits, self.allowance)

    # Around a program ------------------------------------------------------------------------------------------------
    def start(self) -> managed:
        """Begin to manage memory; return self. Raises UserError if the management has begun already."""
        if self._handles:
            raise UserError("this memory is managed already: stop() comes before another start()")
        self.course.left, self._thread = False, get_ident()
        self._handles = [register_optimizer_step_pre_hook(self._stepping),
                         register_optimizer_step_post_hook(self._stepped)]
        if not self.course.steps:
            self.early.begin()
        self.unhooked.start()
        self.states.all_away(all_of_it=False)  # an earlier stop() has brought it to the device
        self._begin()
        return self

    def stop(self) -> None:
        """End the management, if it has begun. Optimizer state returns to the device; evicted tensors when needed."""
        if not self._handles:
            return
        self.unhooked.stop()
        for handle in self._handles:
            handle.remove()
        self._handles, self._stepped_in = [], []
        self.observer.end()
        self.recorder.leave()
        self.early.end()
        self.states.home()
        self.course.left = True
        self.course.phase = Phase.AWAY

    def __enter__(self) -> managed:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __call__(self, function: F) -> F:
        """Use this object as a decorator: return a function that runs ``function`` with its memory managed.
        Raises WrongKind for a generator or coroutine function, whose code runs after the call has returned."""
        if any(kind(function) for kind in LATER):
            raise WrongKind(f"{getattr(function, '__qualname__', function)} is a generator or coroutine function: its "
                            "code runs after the call has returned: put `with managed(...):` around what runs it")

        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)
        return around  # type: ignore[return-value]

    def _retreating(self) -> None:
        self.states.all_away()
        self.unhooked.retreats()

    # Steps -----------------------------------------------------------------------------------------------------------
    def _elsewhere(self) -> bool:
        """True during the optimizer step of another thread's training, which the hooks of this thread do not see."""
        return get_ident() != self._thread and torch._C._current_graph_task_id() == -1

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._elsewhere():
            return None
        self.dropping.rest()
        if self.saved.holds():
            self.backend.settle()  # the optimizer is about to write parameters, which copies for this graph may read
        if not self.course.steps:
            self.early.stepping(optimizer)
        self.observer.stepping(optimizer)
        return self.states.before(optimizer, args, kwargs)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._elsewhere():
            return
        self.observer.stepped(optimizer)
        self.states.after(optimizer)
        # An optimizer that steps a second time in one step shows that nothing else ends it: from now on it does.
        if any(optimizer is each for each in self._stepped_in):
            self._ending.add(optimizer)
        else:
            self._stepped_in.append(optimizer)
        # An optimizer that steps during a backward pass ends no step: the pass continues.
        if torch._C._current_graph_task_id() != -1:
            self.saved.before, self.course.ahead, self.unhooked.never = self.step, (), True
        elif optimizer not in self._ending and self.saved.holds():
            self.unhooked.never = True  # without hooks it would not be known whether autograd holds anything
        else:
            self.step()

    def step(self) -> None:
        """End the current step; a program calls this if no optimizer's step ends it.
        Without effect if autograd has saved nothing in it. Raises BudgetTooSmall for a step that was recorded and does
        not fit."""
        self.saved.before = None
        if not self._handles or (self.unhooked.idle if self.unhooked.bare else not self.saved.packs):
            return
        self.early.end()
        self.unhooked.end()
        packs = self.saved.packs
        seconds = perf_counter() - self._began
        phase, self.recorder.on, self.recorder.lineage = self.course.phase, False, False
        expected = self.course.expected
        known = self.course.end(packs)
        if phase is Phase.MEASURED and self.recorder.unfit:
            known.remark = f"PyTorch computes the gradient of {self.recorder.unfit} with other bits in a recorded step"
            known.unfit = True
        self._report.stepped(phase, seconds, self.saved)
        peak = self.gauge.end()
        try:
            self.allowance.run_seconds += seconds
            if phase is Phase.MEASURED and self.observer.notes is not None:
                self.deciding.plan(known, self.observer.notes.seen(), self._stepped_in, again=self.course.again)
                if known.obeyed is not None:
                    self.course.vain = 0
            elif phase is Phase.GUIDED and known is expected:
                self.deciding.correct(known, seconds, self.backend.traffic.stalled_seconds - self._stalled,
                                      self.saved.late_ids)
            if peak > self.budget:
                self.gauge.exceeded()
                grown = self.deciding.exceeded(self.course, known, self.gauge.bytes)
                self._report.exceeded(self.course.steps, peak, grown)
        finally:
            self._begin()

    def _begin(self) -> None:
        self.observer.end()
        self.deciding.begin(self.course, self._stepped_in)
        plan: Obeyed | None = self.course.expected.obeyed if self.course.expected is not None else None
        if self.course.phase is Phase.MEASURED:
            self.dropping.end()
            self.observer.begin(self._stepped_in)
        elif self.course.phase is Phase.GUIDED and plan is not None and plan.drops:
            self.recorder.enter()
            self.recorder.begin()
            self.dropping.begin(plan.replayed)
        else:
            self.recorder.leave()
            self.dropping.end()
        self.saved.early = self.early.saw
        self.saved.begin()
        self.gauge.begin()
        self.unhooked.begin()
        self._stepped_in = []
        self._began, self._stalled = perf_counter(), self.backend.traffic.stalled_seconds

    # Results ---------------------------------------------------------------------------------------------------------
    def report(self) -> Report:
        """Return the numbers so far, such as bytes copied, steps run and seconds per step."""
        return self._report.now(self.backend, self.dropping.replay.calls, self.course, self.states.moved_bytes)

    def fit(self, shares: Sequence[float] = SHARES) -> Fit:
        """Return the step's floor with its parts, its unmanaged peak, and its predicted speed in budgets between these.
        shares: the budgets, as fractions of the way from the floor (0) to the unmanaged peak (1).
        Raises UserError before the second step has ended."""
        known = self.course.latest("fit()")
        assert known.recorded is not None
        return fit(known.recorded, self.planner, self.deciding.costs, self.limits, shares=shares)

    def explain(self, rows: int = ROWS) -> str:
        """Return a table with the reason and the cost of the current plan's largest evictions (at most ``rows``).
        Raises UserError before the second step has ended."""
        return explanation(self.course.latest("explain()"), self.deciding.costs, rows)

    def save_trace(self, path: str, *, force: bool = False) -> None:
        """Write the trace of a recorded step to a JSON file, which ``minidl lab trace`` and ``minidl view`` read.
        If the program has several kinds of steps, it is of the kind that ran last among those that have a plan.
        Raises UserError before the second step has ended, and if the file cannot be written. force: write over a file
        that minidl did not write, too."""
        save_trace(self.course.latest("save_trace()"), path, force=force)

    def save_plan(self, path: str, *, force: bool = False) -> None:
        """Write the current plan to a JSON file, which ``minidl compare`` reads. As ``save_trace`` otherwise."""
        save_plan(self.course.latest("save_plan()"), path, force=force)

    def page(self, path: str, *, force: bool = False) -> None:
        """Write an HTML page with the memory of the planned step over time, by module and line of the program.
        Its addresses are computed from lifetimes, since those of PyTorch's allocator are not known. As ``save_trace``
        otherwise."""
        write_page(path, [pack(drawn(self.course.latest("page()"), self.deciding.costs, self.budget))], force=force)


def _device_type(device: str | None) -> str:
    there = torch.cuda.is_available()
    name = ("cuda" if there else "cpu") if device is None else str(device)
    if name not in ("cpu", "cuda"):
        raise UserError(f"device is 'cuda' or 'cpu', for all devices of this type, not {name!r}")
    if name == "cuda" and not there:
        raise UserError("device 'cuda': PyTorch finds no GPU (torch.cuda.is_available() is False)")
    return name


def _when_done() -> float:
    """Wait until the GPU has done all its work; return the time in seconds."""
    torch.cuda.synchronize()
    return perf_counter()
