"""--save-plan, --save-trace, --explain, --report: observes the steps of a run, and writes and explains its plan."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from minidl.cli.app.files import FinalFiles
from minidl.cli.app.options import Options
from minidl.cli.app.report_page import ReportPage
from minidl.errors import UserError
from minidl.memory.guided.sequence import Followed
from minidl.nn import Module
from minidl.plan.formats import SavedPlan, is_plan, plan_to_json
from minidl.plan.trace import Trace
from minidl.plan.trace_format import is_trace, trace_to_json
from minidl.policies.saved import SavedPlanPolicy, misfit
from minidl.report.decisions import decisions
from minidl.report.explain import explanation
from minidl.report.layers import LayerNames, layer_names
from minidl.report.meter import Meter
from minidl.report.recording import CallFactRecorder, recording
from minidl.report.sentences import TOLD, sentences
from minidl.runtime import Runtime
from minidl.view.page import is_page
from minidl.view.page import page as to_page


class MemoryWatch:
    """Observes the memory of a run's training steps. Call ``note`` after each step, before anything else runs.

    names: which layer makes which tensor, recorded in every forward pass if a plan is explained or a step is shown on a
    page; else None. recorder: of the facts that only --save-trace needs, else None.
    """

    def __init__(self, options: Options, runtime: Runtime, names: LayerNames | None,
                 recorder: CallFactRecorder | None = None) -> None:
        self._options = options
        self._recorder = recorder
        self._runtime = runtime
        self._names = names
        self._followed: tuple[Trace, Followed] | None = None
        self._trace: Trace | None = None
        self._page = ReportPage(runtime, names) if options.report is not None and names is not None else None
        self._plan_fits = False  # that of --plan: the first step that was planned is its own
        self._enough = False  # steps for a plan to be followed
        self._asks = next((flag for flag, value in (("--plan", options.plan), ("--save-plan", options.save_plan),
                                                    ("--explain", options.explain)) if value is not None), None)
        runtime.keeps_trace = bool(options.save_trace)

    def step(self, *, last: bool) -> AbstractContextManager[None]:
        """Return a context for a training step; ``last``: it is the last one of the run, which ``--report`` records."""
        return self._page.recording() if last and self._page is not None else nullcontext()

    def note(self) -> None:
        """Record that a training step has ended.
        Raises UserError if the plan of --plan was made for another sequence of calls."""
        if self._recorder is not None and self._runtime.last_trace is not None:
            self._trace = self._recorder.complete(self._runtime.last_trace)
        guide = self._runtime.guide
        entry = guide.latest if guide is not None else None
        if self._page is not None:
            self._page.note(entry.last if entry is not None else None)
        if entry is None:
            return
        self._require_its_own_iteration(entry.trace)
        if entry.last is not None:
            self._followed = entry.trace, entry.last

    def _require_its_own_iteration(self, trace: Trace) -> None:
        """Raise UserError if the plan of --plan was made for other calls than those of ``trace``."""
        policy = self._runtime.policy
        if self._plan_fits or not isinstance(policy, SavedPlanPolicy):
            return
        difference = misfit(policy.saved, trace)
        if difference is not None:
            raise UserError(f"{self._options.plan} holds a plan for another iteration: {difference}")
        self._plan_fits = True

    def require_enough(self, steps: int, *, going_on: bool) -> None:
        """Raise UserError if a flag needs a plan, but ``steps`` steps are too few for one to be followed.
        A resumed run (``going_on``) prints the message and continues."""
        guide = self._runtime.guide
        self._enough = guide is None or steps >= guide.iterations_to_follow
        if guide is None or self._asks is None or self._enough:
            return
        why = (f"{self._asks}: a plan is followed when the same calls have come twice after the first step, whose "
               f"gradients are new: it takes {guide.iterations_to_follow} steps, and there are {steps}")
        if not going_on:
            raise UserError(why)
        print(why, flush=True)

    def conclude(self, leaving: FinalFiles, meter: Meter, unmanaged_peak_bytes: int) -> str:
        """Write the files that the flags name; return the explanation of the plan as text, "" if no flag asks for it.
        """
        if (page := self._page) is not None:
            title = f"{self._options.model}, batch {meter.batch}, {self._options.manager}"
            packed = page.packed(title, meter, unmanaged_peak_bytes, self._followed)
            if self._runtime.ranks is None or not self._runtime.ranks.rank:
                leaving.text(self._options.report, is_page, lambda: to_page(packed))
        options, guide = self._options, self._runtime.guide
        if self._trace is not None:
            trace_of_step = self._trace
            leaving.text(options.save_trace, is_trace, lambda: trace_to_json(trace_of_step))
        if guide is None or self._asks is None:
            return ""
        if self._followed is None:
            if self._enough or options.save_plan or options.explain:
                leaving.attempt(self._refuse_without_a_plan)
            return ""
        trace, followed = self._followed
        leaving.text(options.save_plan, is_plan, lambda: plan_to_json(SavedPlan.of(followed.plan, trace)))
        if self._names is None or options.explain is None:
            return ""
        names = self._names.of(trace)
        found = decisions(trace, followed.plan, guide.costs)
        return "\n".join([*sentences(found, len(trace.calls), followed.returns, names, told=TOLD),
                          explanation(trace, followed, found, names, rows=options.explain)])

    def _refuse_without_a_plan(self) -> None:
        raise UserError("no step ran under a plan: one is made when the same calls have come twice after the first "
                        "step, and these never came twice")


@contextmanager
def watch(options: Options, runtime: Runtime, model: Module) -> Iterator[MemoryWatch]:
    """Yield the MemoryWatch of the steps that are trained inside the ``with`` block."""
    with ExitStack() as around:
        named = options.explain is not None or options.report is not None
        names = around.enter_context(layer_names(model, runtime.executor)) if named else None
        recorder = around.enter_context(recording(runtime)) if options.save_trace else None
        yield MemoryWatch(options, runtime, names, recorder)

