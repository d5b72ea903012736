"""Which steps are known, and how the step under way is carried out. Knows shapes of what is packed; moves nothing.

    AWAY      all that is saved leaves at once: the first step of its kind, and any that is like none.
    MEASURED  the same under the recorder: the second.
    GUIDED    as its plan says.

A step is known by the shapes and types that it packs, in their order. Each step is expected to be the one that has
followed the last one before; at the first pack another known one may take over. One that turns out to be like none is
carried out AWAY from there on, and what it has kept so far leaves, too.
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
from minidl.torch.items import RETREAT, SWAP, Decision
from minidl.torch.planned import Obeyed
from minidl.torch.seen import Kind, Seen

MOST_KNOWN = 64   # kinds of steps
MOST_VAIN = 8     # recordings in a row that were of another step than expected: no more are made
REMEMBERED = 9    # durations of a kind of step

Packed = tuple[tuple[int, ...], torch.dtype]


class Phase(Enum):
    """How a step is carried out."""

    AWAY = "all that is saved is swapped"
    MEASURED = "the same, recorded and timed"
    GUIDED = "as planned"


@dataclass(eq=False)
class Known:
    """A kind of step.

    packs     shape and type of all that it packs.
    recorded  its recording, if there is one; seen: the same, as it is planned for.
    obeyed    its plan; proposal: what the policy wants to know again; limits: that it was made for.
    next      the kind that has followed it.
    late      tensors of the plan that were waited for when it was last followed, and how often.
    """

    packs: tuple[Packed, ...]
    recorded: Seen | None = None
    seen: Seen | None = None
    obeyed: Obeyed | None = None
    proposal: Proposal | None = None
    limits: Limits | None = None
    next: Known | None = None
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    used: int = 0
    late: Mapping[int, int] = field(default_factory=dict)
    staying: Sequence[Packed | None] = ()

    @cached_property
    def parameter_bytes(self) -> int:
        """Of its optimizer's parameters; asked for when the step has been recorded."""
        seen = self.recorded
        return sum(seen.trace.tensors[i].nbytes for i, kind in seen.kinds.items()
                   if kind is Kind.PARAMETER and i in seen.trace.tensors) if seen is not None else 0

    def obey(self, obeyed: Obeyed) -> None:
        """Follow a plan from the next step on."""
        self.obeyed = obeyed
        self.staying = tuple(None if number in obeyed.decisions else packed
                             for number, packed in enumerate(self.packs, 1))


class Course:
    """The guide of saved tensors.

    diverged  steps that turned out to be like none after they had followed a plan.
    """

    def __init__(self) -> None:
        self.known: list[Known] = []
        self.expected: Known | None = None
        self.phase = Phase.AWAY
        self.diverged = self.steps = 0
        self._last: Known | None = None
        self._packs: list[Packed] = []
        self._vain = 0
        self.staying: Sequence[Any] = ()
        self.idle = False
        self.left = False  # nothing is planned any more

    # In a step -------------------------------------------------------------------------------------------------------
    def packed(self, number: int, tensor: torch.Tensor) -> Decision:
        """What is to become of what is packed."""
        packed = tensor.shape, tensor.dtype
        if self.phase is not Phase.GUIDED:
            self._packs.append(packed)
            if forward_ad._current_level >= 0:  # with dual numbers PyTorch rounds otherwise under any dispatch mode
                self._vain = MOST_VAIN
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
                self.staying, self.idle = other.staying, False
                assert other.obeyed is not None
                return other.obeyed.decision(1)
        self.diverged += 1
        self.phase, self.staying = Phase.AWAY, ()
        self._packs = [*known.packs[:number - 1], packed]
        return RETREAT

    def unpacked(self, number: int) -> tuple[int, ...]:
        """Tensors whose way back begins after an unpack."""
        known = self.expected
        if self.phase is not Phase.GUIDED or known is None or known.obeyed is None:
            return ()
        return known.obeyed.triggers.get(number, ())

    # Between steps ---------------------------------------------------------------------------------------------------
    def end(self, packs: int) -> Known:
        """The step has ended after so many packs; returns its kind."""
        self.steps += 1
        if self.phase is Phase.GUIDED:
            known = self.expected
            assert known is not None
            if packs != len(known.packs):
                known = self._kind(known.packs[:packs])
        else:
            known = self._kind(tuple(self._packs))
            if self.phase is Phase.MEASURED:
                self._vain = 0 if known is self.expected else self._vain + 1
        known.used = self.steps
        if self._last is not None:
            self._last.next = known
        self._last = known
        return known

    def latest(self, what: str) -> Known:
        """The kind with a plan that came last. Raises UserError if there is none yet."""
        planned = [known for known in self.known if known.obeyed is not None]
        if not planned:
            raise UserError(f"no step has been recorded yet: {what} is known when the second step has ended")
        return max(planned, key=lambda known: known.used)

    def _kind(self, packs: tuple[Packed, ...]) -> Known:
        found = next((known for known in self.known if known.packs == packs), None)
        if found is None:
            found = Known(packs)
            self.known.append(found)
            if len(self.known) > MOST_KNOWN:
                self.known.remove(min(self.known, key=lambda known: known.used or self.steps))
        return found

    def begin(self) -> None:
        """Expect the next step."""
        last = self._last
        self._packs = []
        self.expected = None if last is None else last.next if last.next is not None else last
        if self.expected is None or self.left:
            self.phase = Phase.AWAY
        elif self.expected.obeyed is not None:
            self.phase = Phase.GUIDED
        else:
            self.phase = Phase.MEASURED if self._vain < MOST_VAIN else Phase.AWAY
        guided = self.expected if self.phase is Phase.GUIDED else None
        self.staying = guided.staying if guided is not None else ()
        self.idle = guided is not None and guided.obeyed is not None and not guided.obeyed.triggers
