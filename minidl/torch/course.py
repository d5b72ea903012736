"""Recognizes training steps by the shapes of their saved tensors, and chooses how the current step runs.

    AWAY      every saved tensor is swapped out: the first step of a kind, and a step that is like no known one.
    MEASURED  the same while the recorder is on: a step that is expected to be of a known kind without a plan.
    GUIDED    the step follows its plan.
    KEPT      every saved tensor stays, as long as they are few: a step whose kind has no plan, or that left its plan.

The shapes and dtypes of a step's saved tensors (its packs), in order, identify its kind. The expected kind is the one
that came after as many steps of the last kind before; at the first pack another known kind can replace it. A step that
differs from its kind runs AWAY from that pack on, and the tensors that it has kept on the device so far are swapped
out, too. If its kind evicts nothing, it is KEPT instead.

How much a step may keep follows from the planned kinds that evict nothing: a step that saves n times as many bytes at
once is taken to have at most n times their peak. If that is less than the budget by a margin, it may keep these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torch.autograd import forward_ad

from minidl.errors import UserError
from minidl.torch.items import RETREAT, STAY, SWAP, Decision
from minidl.torch.known import Known, Packed, nbytes_of

MOST_KNOWN = 64   # kinds of steps that are remembered
MOST_ENDS = 64    # lengths of rows of one kind that are remembered
MOST_VAIN = 8     # recordings in a row that led to no plan; then recording stops until a kind of step comes again
SETTLED = 2       # foretold kinds in a row, after which a step that could keep everything is recorded, and gets a plan
MARGIN = 1.5      # the budget, as a multiple of the peak that a step which keeps everything without a plan may have


class Phase(Enum):
    """How a step runs: it swaps all saved tensors out, does so and is recorded, follows a plan, or keeps everything."""

    AWAY = "all saved tensors swapped"
    MEASURED = "the same, recorded and timed"
    GUIDED = "as planned"
    KEPT = "all saved tensors kept, far below the budget"


class Course:
    """The ``Guide`` that decides, by the phase of the step, about each tensor that autograd saves.
    budget: bytes that a step may have at its peak.

    diverged    number of steps that departed from the plan that they followed.
    vain        recordings in a row that led to no plan.
    again       True if the latest step was of a kind that had run before and has no plan yet.
    unrecorded  the reason if no step of this program may be recorded; "": steps may be.
    model       the planned kind from which it follows how many bytes a step without a plan may keep; None: no kind.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.model: Known | None = None
        self._may_keep = 0  # bytes of packs that a step without a plan may keep at once
        self._held = self._most_held = self._unpacks = 0  # bytes of packs since the last unpack, the most, its number
        self.known: list[Known] = []
        self.expected: Known | None = None
        self.phase = Phase.AWAY
        self.diverged = self.steps = 0
        self._last: Known | None = None
        self._row = 0  # steps of the last kind in a row
        self._packs: list[Packed] = []
        self.vain, self.unrecorded = 0, ""
        self.ahead: Sequence[tuple[Packed, Decision]] = ()
        self.idle = self.again = False
        self._foretold = 0  # steps in a row, up to the last one, whose kind was the expected one
        self._began: Known | None = None  # the kind that was expected when the step began
        self.left = False  # True after stop(): no step is planned
        self._astray = False

    # In a step -------------------------------------------------------------------------------------------------------
    def packed(self, number: int, packed: Packed, unpacks: int) -> Decision:
        """Return the decision about the ``number``-th tensor that autograd saves in this step: stay, swap or drop.
        A tensor other than the plan's ends the plan, with the decision RETREAT. If it is the first, the step follows
        another kind's plan that begins with such a tensor and drops none, if there is one."""
        if self.phase is not Phase.GUIDED:
            self._packs.append(packed)
            if forward_ad._current_level >= 0:
                self.unrecorded = "PyTorch rounds dual numbers differently in a recorded step"
            self._hold(nbytes_of(packed), unpacks)
            return self._keep() if self.phase is Phase.KEPT else SWAP
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
        self._hold(sum(map(nbytes_of, self._packs)), unpacks)  # perhaps those of several passes: no fewer than at once
        if not known.keeps:
            return RETREAT
        self.phase = Phase.KEPT
        return self._keep()

    def _hold(self, nbytes: int, unpacks: int) -> None:
        """Count bytes that autograd saves. Once it has read some of them, its next pass begins."""
        if unpacks != self._unpacks:
            self._unpacks, self._held = unpacks, 0
        self._held += nbytes
        self._most_held = max(self._held, self._most_held)

    def _keep(self) -> Decision:
        """Return the decision about a saved tensor in a step without a plan that has kept all so far."""
        if self._held <= self._may_keep:
            return STAY
        self.phase, self.idle = Phase.AWAY, False
        return RETREAT

    def _depart(self, known: Known) -> None:
        self.diverged += 1
        self.phase, self.ahead = Phase.AWAY, ()
        known.trusted, known.calls = 0, None

    def astray(self) -> bool:
        """Note that the step, which runs without hooks, is not of the expected kind; return True if it is KEPT.
        Its saved tensors are not known, but up to now they are among those of this kind. The step may go on to keep
        everything if it may keep as many."""
        known = self.expected
        assert known is not None
        self._depart(known)
        self._astray = True
        self._held = known.saved_bytes
        if self._held > self._may_keep:
            return False
        self.phase = Phase.KEPT
        return True

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
            known.held = self._most_held
            self.again = known.used > 0 and known.obeyed is None
            if self.again:
                self.vain = 0
            elif self.phase is Phase.MEASURED:
                self.vain += 1
        known.used = self.steps
        self._foretold = self._foretold + 1 if known is self._began and not self._astray else 0
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
                self.known.remove(min(self.known, key=lambda each: (each.obeyed is not None, each.used or self.steps)))
        return found

    def begin(self, *, steady: bool = True) -> None:
        """Begin a step: predict its kind (the one that followed an equal row before), and choose its ``Phase``.
        steady: False if the bytes that the optimizer holds are still growing, so that no recording stays right."""
        last = self._last
        self._packs, self._astray = [], False
        self._held = self._most_held = self._unpacks = 0
        self.expected = self._began = None if last is None else last.ends.get(self._row, last)
        self._limit()
        if self.expected is None or self.left or not steady:
            self.phase = Phase.AWAY
        elif self.expected.obeyed is not None:
            self.phase = Phase.GUIDED
        else:
            never = self.expected.unfit or self.unrecorded or self.vain >= MOST_VAIN
            keep = self.expected.saved_bytes <= self._may_keep
            if keep and (never or self._foretold < SETTLED):
                self.phase = Phase.KEPT
            else:
                self.phase = Phase.AWAY if never else Phase.MEASURED
        guided = self.expected if self.phase is Phase.GUIDED else None
        self.ahead = guided.ahead if guided is not None else ()
        self.idle = self.phase is Phase.KEPT or (
            guided is not None and guided.obeyed is not None and not guided.obeyed.triggers)

    def _limit(self) -> None:
        """Set how many bytes of packs a step without a plan may keep: fewer than any kind that evicts some has."""
        most, self.model = 0.0, None
        for known in self.known:
            if known.keeps and known.obeyed is not None and 0 < MARGIN * known.obeyed.peak_bytes <= self.budget:
                may = known.saved_bytes * self.budget / (MARGIN * known.obeyed.peak_bytes)
                if may > most:
                    most, self.model = may, known
        self._may_keep = int(min([most, *(known.saved_bytes - 1 for known in self.known if known.outgrown or (
            known.obeyed is not None and not known.keeps))]))
