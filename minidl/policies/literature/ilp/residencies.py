"""Chooses the addresses of a plan made by ``orders``:
a walk through the calls, as the engine executes them, lists every residency, and the list is packed."""

from collections.abc import Iterable, Mapping

import numpy as np

from minidl.meta import aligned
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import AccessKey, Action, Plan, ResidencyKey
from minidl.plan.trace import TensorId, Trace, TraceCall
from minidl.planning.problem import Array, Problem, problem
from minidl.policies.auto.addresses import addresses

NOTHING: Mapping[TensorId, Action] = {}
HERE, AWAY, DROPPED, ABSENT = "here", "away", "dropped", "absent"


def placed(trace: Trace, plan: Plan, ended: Mapping[TensorId, int], algorithms: Mapping[int, str], costs: Costs,
           limits: Limits) -> dict[ResidencyKey, int]:
    """Return an address for each residency that the packer finds one for.

    ended: tensor -> the call before which its copy out has ended; algorithms: call -> the name of its algorithm.
    """
    facts = problem(trace, costs)
    walk = _Walk(trace, plan, ended)
    for k, call in enumerate(trace.calls):
        walk.carry_out(k, call)
    mode = np.zeros(len(facts.gap_call), np.int64)
    notes = walk.rows(facts, _workspaces(trace, facts, walk.step_of, algorithms))
    return addresses(facts, mode, notes, limits)[0]


def _workspaces(trace: Trace, facts: Problem, step_of: list[int], algorithms: Mapping[int, str]
                ) -> list[tuple[int, int]]:
    """Return (index of the algorithm, step) for each call that takes a workspace."""
    found = []
    for k, call in enumerate(trace.calls):
        names = {a.name: a.workspace for a in call.algorithms}
        nbytes = names.get(algorithms.get(k, ""), 0)
        for a in range(facts.algorithm_ptr[k], facts.algorithm_ptr[k + 1]):
            if nbytes and facts.algorithm_bytes[a] == aligned(nbytes):
                found.append((a, step_of[k]))
                break
    return found


class _Walk:
    """Walks through the calls as the engine would execute them, and lists each tensor's residencies.
    A note is [tensor, first step, last step (-1: the end), the note whose bytes are donated to it (-1: none)].
    wanted: for each note, False if it is that of an output that nothing reads."""

    def __init__(self, trace: Trace, plan: Plan, ended: Mapping[TensorId, int]) -> None:
        self.trace, self.plan, self.ended = trace, plan, ended
        self.maker = {t: k for k, call in enumerate(trace.calls) for t in call.outputs}
        self.where = dict.fromkeys(trace.tensors, ABSENT)
        self.notes: list[list[int]] = []
        self.wanted: list[bool] = []
        self.note: dict[TensorId, int] = {}
        self.step = 0
        self.step_of: list[int] = []
        self.counts: dict[TensorId, int] = {}
        self.leaving: dict[int, list[TensorId]] = {}  # call -> tensors whose copies out end before it
        self.copied: set[TensorId] = set()
        self.due: tuple[tuple[TensorId, ...], tuple[TensorId, ...]] = ((), ())  # swap-ins and replays before a call
        self.spent: dict[TensorId, Action] = {}  # tensors that leave after these replays have read them
        for t in trace.tensors:
            if t not in self.maker:
                self._arrive(t)

    def rows(self, facts: Problem, workspaces: Iterable[tuple[int, int]]) -> Array:
        """Return the notes with the problem's tensor numbers, followed by the workspaces."""
        number = {t: n for n, t in enumerate(facts.ids.tolist())}
        rows = [[number[t] if wanted else -1 - number[t], *rest]
                for (t, *rest), wanted in zip(self.notes, self.wanted, strict=True)]
        rows += [[len(number) + a, step, step, -1] for a, step in workspaces]
        return np.array(rows, np.int64).reshape(-1, 4)

    def _arrive(self, t: TensorId, *, over: int = -1, wanted: bool = True) -> None:
        self.note[t] = len(self.notes)
        self.notes.append([t, self.step, -1, over])
        self.wanted.append(wanted)
        if over >= 0:
            self.notes[over][2] = self.step - 1
        self.where[t] = HERE

    def _leave(self, t: TensorId, where: str) -> None:
        note = self.notes[self.note[t]]
        if note[2] < 0:
            note[2] = self.step - 1
        self.where[t] = where

    def carry_out(self, k: int, call: TraceCall) -> None:
        """Execute one call of the program, with the plan's actions before and after it."""
        for t in self.leaving.pop(k, ()):
            if self.where[t] == AWAY:
                self._leave(t, AWAY)
        swap_ins, replays = self.due
        for t in swap_ins:
            if self.where[t] == AWAY:
                self._fetch(t)
        if targets := [t for t in replays if self.where[t] == DROPPED]:
            self._replay(targets, alone=True, spent=self.spent)
        for t in call.inputs:
            if self.where[t] in (DROPPED, ABSENT) and t in self.maker:
                self._replay([t])
        for t in dict.fromkeys(call.inputs):
            if self.where[t] == AWAY:
                self._fetch(t)
        keys = self._count(call)
        dropped = {t for t, n in keys if self.plan.evictions.get((t, n)) is Action.DROP}
        self._make(call, {*call.frees, *dropped}, set(call.outputs))
        self.step_of.append(self.step)
        self.step += 1
        for t in call.frees:
            self._leave(t, ABSENT)
        self._after(k, keys)

    def _fetch(self, t: TensorId) -> None:
        if self.notes[self.note[t]][2] < 0:
            self.where[t] = HERE  # its copy has not ended, so it is still on the device
        else:
            self._arrive(t)

    def _count(self, call: TraceCall) -> list[AccessKey]:
        keys = []
        for t in dict.fromkeys((*call.inputs, *call.outputs)):
            self.counts[t] = self.counts.get(t, 0) + 1
            keys.append((t, self.counts[t]))
        return keys

    def _make(self, call: TraceCall, ends: set[TensorId], wanted: set[TensorId]) -> None:
        """Note the outputs of a call; an input in ``ends`` is donated to an output if possible.
        wanted: outputs that are read."""
        taken: set[TensorId] = set()
        for t in call.outputs:
            if self.where[t] == HERE:  # recomputed while the tensor is still on the device
                self.notes.append([t, self.step, self.step, -1])
                self.wanted.append(False)
                continue
            over = next((i for o, i in call.may_donate if o == t and i in ends and i not in taken
                         and self.where[i] == HERE), None)
            if over is not None:
                taken.add(over)
            self._arrive(t, over=-1 if over is None else self.note[over], wanted=t in wanted)
            if t not in wanted:
                self._leave(t, self.where[t])
                self.notes[-1][2] = self.step

    def _replay(self, targets: list[TensorId], *, alone: bool = False, spent: Mapping[TensorId, Action] = NOTHING
                ) -> None:
        """Replay, in program order, the missing calls that compute the dropped ``targets``.
        Other outputs of these calls stay if they are used later, unless ``alone``. spent: tensors that leave right
        after their last read by these replays."""
        calls: set[int] = set()
        stack = list(targets)
        while stack:
            k = self.maker[stack.pop()]
            if k not in calls:
                calls.add(k)
                stack += [t for t in self.trace.calls[k].inputs
                          if self.where[t] in (DROPPED, ABSENT) and t in self.maker]
        left: dict[TensorId, int] = {}
        for k in calls:
            for t in dict.fromkeys(self.trace.calls[k].inputs):
                left[t] = left.get(t, 0) + 1
        made = {t for k in calls for t in self.trace.calls[k].outputs if self.where[t] != HERE}
        temporary = {t for k in calls for t in self.trace.calls[k].outputs if self.where[t] == ABSENT}
        for k in sorted(calls):
            call = self.trace.calls[k]
            for t in dict.fromkeys(call.inputs):
                if self.where[t] == AWAY:
                    self._fetch(t)
            before = {t: self.where[t] for t in call.outputs}
            self._make(call, {t for t in call.inputs if t in temporary and left[t] == 1},
                       {t for t in call.outputs if before[t] != ABSENT or t in left})
            for t in call.outputs:
                if before[t] == ABSENT and t not in left:
                    self.where[t] = ABSENT
            self.step += 1
            for t in dict.fromkeys(call.inputs):
                left[t] -= 1
                if not left[t] and t in temporary:
                    self._leave(t, ABSENT)
                elif not left[t] and t in spent and self.where[t] == HERE:
                    self._leave(t, self._where_to(t, spent[t]))
            if alone:
                for t in (*call.inputs, *call.outputs):
                    if t in made and t not in temporary and not left.get(t) and t not in targets:
                        self._leave(t, DROPPED)

    def _after(self, k: int, keys: list[AccessKey]) -> None:
        """Execute the plan's actions after a call."""
        plan = self.plan
        for t, n in keys:
            action = plan.evictions.get((t, n))
            if action is Action.DROP and self.where[t] == HERE:
                self._leave(t, DROPPED)
            elif action is Action.SWAP_OUT and self.where[t] == HERE:
                if t in self.copied:
                    self._leave(t, AWAY)
                else:
                    self.copied.add(t)
                    self.where[t] = AWAY
                    self.leaving.setdefault(self.ended[t], []).append(t)
        for t, action in (each for key in keys for each in plan.releases.get(key, ())):
            if self.where[t] == HERE:
                self._leave(t, self._where_to(t, action))
        self.due = (tuple(t for key in keys for t in plan.prefetches.get(key, ())),
                    tuple(t for key in keys for t in plan.replays.get(key, ())))
        self.spent = dict(each for key in keys for each in plan.spent.get(key, ()))

    def _where_to(self, t: TensorId, action: Action) -> str:
        return AWAY if action is Action.SWAP_OUT and t in self.copied else DROPPED
