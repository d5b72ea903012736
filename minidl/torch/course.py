"""Recognizes training steps by the shapes of their saved tensors, and chooses how the current step runs.

    AWAY      every saved tensor is swapped out: the first step of a kind, and a step that is like no known one.
    MEASURED  the same while the recorder is on: a step that is expected to be of a known kind without a plan.
    GUIDED    the step follows its plan.

The shapes and dtypes of a step's saved tensors (its packs), in order, identify its kind. The expected kind is the one
that came after as many steps of the last kind before; at the first pack another known kind can replace it. A step that
differs from its kind runs AWAY from that pack on, and the tensors that it has kept on the device so far are swapped
out, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch.autograd import forward_ad

from minidl.errors import UserError
from minidl.plan.costs import Limits
from minidl.plan.plan import Proposal
from minidl.torch.budget import Floor
from minidl.torch.items import RETREAT, SWAP, Decision
from minidl.torch.planned import Obeyed
from minidl.torch.seen import Kind, Seen

MOST_KNOWN = 64   # kinds of steps that are remembered
MOST_ENDS = 64    # lengths of rows of one kind that are remembered
MOST_VAIN = 8     # recordings in a row that led to no plan; then recording stops until a kind of step comes again
REMEMBERED = 9    # durations kept of each kind of step

Packed = tuple[tuple[int, ...], torch.dtype]

Called = tuple[int, Any]  # the call of a module: autograd's nodes before it, and the shape of its first argument


class Phase(Enum):
    """How a step runs: it swaps all saved tensors out, swaps them out and is recorded, or follows a plan."""

    AWAY = "all saved tensors swapped"
    MEASURED = "the same, recorded and timed"
    GUIDED = "as planned"


@dataclass(eq=False)
class Known:
    """A kind of step, with its recording and its plan.
    Two steps are of one kind if autograd saves equal shapes in them.

    packs     shape and dtype of every tensor that autograd saves in it, the first one saved first.
    recorded  its recording; seen: the variant of the recording that the plan is made for.
    obeyed    its plan, by the numbers of saved tensors; proposal: the policy's answer; limits: the plan's memory
              limits.
    refused   if its budget was refused: the plan with the least memory, which no step follows.
    floor     the fewest bytes in which it can run; unmanaged_bytes: its peak if nothing is evicted; remark: the reason
              if the policy has no plan for it, else "". As recorded last.
    ends      number of steps of this kind in a row -> the kind that came next, the last time.
    seconds   durations of its latest planned steps; used: the number of its latest step, of all kinds, from 1.
    late      tensor of the plan -> how often the backward pass found it evicted in the last planned step.
    trusted   number of its steps that have followed the plan since the last step that did not.
    unfit     True if its gradients would have other bits in a recorded step, so that it gets no plan.
    calls     the calls of modules in it, its end the last; empty: too few for a step without hooks; None: not known.
    """

    packs: tuple[Packed, ...]
    recorded: Seen | None = None
    seen: Seen | None = None
    obeyed: Obeyed | None = None
    refused: Obeyed | None = None
    floor: Floor | None = None
    unmanaged_bytes: int = 0
    remark: str = ""
    proposal: Proposal | None = None
    limits: Limits | None = None
    ends: dict[int, Known] = field(default_factory=dict)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    used: int = 0
    late: Mapping[int, int] = field(default_factory=dict)
    ahead: Sequence[tuple[Packed, Decision]] = ()
    trusted: int = 0
    unfit: bool = False
    calls: Sequence[Called] | None = None

    @cached_property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters in its recording; 0 without one. The first read stores the number."""
        seen = self.recorded
        return sum(seen.trace.tensors[i].nbytes for i, kind in seen.kinds.items()
                   if kind is Kind.PARAMETER and i in seen.trace.tensors) if seen is not None else 0

    @property
    def shown(self) -> Obeyed | None:
        """The plan that pages and tables show: the one that steps follow, else the refused one."""
        return self.obeyed or self.refused

    def obey(self, obeyed: Obeyed) -> None:
        """Set the plan that steps of this kind follow from the next one on."""
        self.obeyed, self.trusted, self.calls = obeyed, 0, None
        self.ahead = tuple((packed, obeyed.decision(number)) for number, packed in enumerate(self.packs, 1))


class Course:
    """The ``Guide`` that decides, by the phase of the step, about each tensor that autograd saves.

    diverged    number of steps that departed from the plan that they followed.
    again       True if the latest step was of a kind that had run before and has no plan yet.
    unrecorded  the reason if no step of this program may be recorded; "": steps may be.
    """

    def __init__(self) -> None:
        self.known: list[Known] = []
        self.expected: Known | None = None
        self.phase = Phase.AWAY
        self.diverged = self.steps = 0
        self._last: Known | None = None
        self._row = 0  # steps of the last kind in a row
        self._packs: list[Packed] = []
        self._vain, self.unrecorded = 0, ""
        self.ahead: Sequence[tuple[Packed, Decision]] = ()
        self.idle = self.again = False
        self.left = False  # True after stop(): no step is planned
        self._astray = False

    # In a step -------------------------------------------------------------------------------------------------------
    def packed(self, number: int, tensor: torch.Tensor) -> Decision:
        """Return the decision about the ``number``-th tensor that autograd saves in this step: stay, swap or drop.
        A tensor other than the plan's ends the plan, with the decision RETREAT. If it is the first, the step follows
        another kind's plan that begins with such a tensor and drops none, if there is one."""
        packed = tensor.shape, tensor.dtype
        if self.phase is not Phase.GUIDED:
            self._packs.append(packed)
            if forward_ad._current_level >= 0:
                self.unrecorded = "PyTorch rounds dual numbers differently in a recorded step"
            return SWAP
        known = self.expected
        assert known is not None and known.obeyed is not None
        if number <= len(known.packs) and known.packs[number - 1] == packed:
            return known.obeyed.decision(number)
        if number == 1:
            other = next((k for k in self.known if k.obeyed is not None and k.packs and k.packs[0] == packed
                          and not k.obeyed.drops), None)
            if other is not None:
                self.expected = other
                self.ahead, self.idle = other.ahead, False
                assert other.obeyed is not None
                return other.obeyed.decision(1)
        self._depart(known)
        self._packs = [*known.packs[:number - 1], packed]
        return RETREAT

    def _depart(self, known: Known) -> None:
        self.diverged += 1
        self.phase, self.ahead = Phase.AWAY, ()
        known.trusted, known.calls = 0, None

    def astray(self) -> None:
        """Note that the step, which runs without hooks, is not of the expected kind. Its saved tensors are not known.
        """
        assert self.expected is not None
        self._depart(self.expected)
        self._astray = True

    def unpacked(self, number: int) -> tuple[int, ...]:
        """Return the ids of the tensors whose swap-in starts after the ``number``-th read of a saved tensor."""
        known = self.expected
        if self.phase is not Phase.GUIDED or known is None or known.obeyed is None:
            return ()
        return known.obeyed.triggers.get(number, ())

    # Between steps ---------------------------------------------------------------------------------------------------
    def end(self, packs: int) -> Known:
        """End the step, in which autograd has saved ``packs`` tensors; return its kind, or the expected if astray."""
        self.steps += 1
        if self._astray:
            assert self.expected is not None
            known = self.expected  # the step counts in the row of this kind, though its saved tensors are not known
        elif self.phase is Phase.GUIDED:
            assert self.expected is not None
            known = self.expected
            known.trusted += 1
            if packs != len(known.packs):
                known.trusted, known.calls = 0, None
                known = self._kind(known.packs[:packs])
        else:
            known = self._kind(tuple(self._packs))
            self.again = known.used > 0 and known.obeyed is None
            if self.again:
                self._vain = 0
            elif self.phase is Phase.MEASURED:
                self._vain += 1
        known.used = self.steps
        last = self._last
        if last is not None:
            last.ends.pop(self._row, None)
            if known is not last:
                last.ends[self._row], self._row = known, 0
                if len(last.ends) > MOST_ENDS:
                    del last.ends[next(iter(last.ends))]
        self._last = known
        self._row += 1
        return known

    def forget_plans(self) -> None:
        """Remove the plans of all kinds of steps, so that the next step of each kind is recorded again."""
        for known in self.known:
            known.obeyed, known.ahead, known.trusted, known.calls = None, (), 0, None

    def latest(self, what: str) -> Known:
        """Return the kind with a plan, also a refused one, that ran last.
        Raises UserError, with ``what`` (the caller), if there is none."""
        planned = [known for known in self.known if known.shown is not None]
        if not planned:
            reason = next((known.remark for known in self.known if known.unfit), self.unrecorded)
            if reason:
                raise UserError(f"{what} needs a recorded step, and there is none: {reason}")
            raise UserError(f"{what} needs a recorded step, the second step of a kind: {self.steps} have ended "
                            "(an optimizer's step ends one, or memory.step())")
        return max(planned, key=lambda known: known.used)

    def _kind(self, packs: tuple[Packed, ...]) -> Known:
        found = next((known for known in self.known if known.packs == packs), None)
        if found is None:
            found = Known(packs)
            self.known.append(found)
            if len(self.known) > MOST_KNOWN:
                self.known.remove(min(self.known, key=lambda known: known.used or self.steps))
        return found

    def begin(self, *, steady: bool = True) -> None:
        """Begin a step: predict its kind (the one that followed an equal row before), and choose its ``Phase``.
        steady: False if the bytes that the optimizer holds are still growing, so that no recording stays right."""
        last = self._last
        self._packs, self._astray = [], False
        self.expected = None if last is None else last.ends.get(self._row, last)
        if self.expected is None or self.left or not steady:
            self.phase = Phase.AWAY
        elif self.expected.obeyed is not None:
            self.phase = Phase.GUIDED
        else:
            never = self.expected.unfit or self.unrecorded or self._vain >= MOST_VAIN
            self.phase = Phase.AWAY if never else Phase.MEASURED
        guided = self.expected if self.phase is Phase.GUIDED else None
        self.ahead = guided.ahead if guided is not None else ()
        self.idle = guided is not None and guided.obeyed is not None and not guided.obeyed.triggers
