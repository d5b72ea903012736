"""A kind of training step: the shapes of its saved tensors, its recording and its plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch

from minidl.plan.costs import Limits
from minidl.plan.plan import Proposal
from minidl.torch.budget import Floor
from minidl.torch.items import Decision
from minidl.torch.planned import Obeyed
from minidl.torch.seen import Kind, Seen

REMEMBERED = 9    # durations kept of each kind of step

Packed = tuple[tuple[int, ...], torch.dtype]

Called = tuple[int, Any]  # the call of a module: autograd's nodes before it, and the shape of its first argument


def packed_of(tensor: torch.Tensor) -> Packed:
    """Return the shape and dtype of a saved tensor; of a nested one the shape of all its elements together.
    The shape of a nested tensor has symbols, which are others in each step, or it has none."""
    if not tensor.is_nested:
        return tensor.shape, tensor.dtype
    jagged = tensor.layout is torch.jagged
    return tensor._values.shape if jagged else (tensor.numel(),), tensor.dtype  # type: ignore[attr-defined]


def nbytes_of(packed: Packed) -> int:
    """Return the bytes of a saved tensor."""
    return prod(packed[0]) * packed[1].itemsize


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
    outgrown  True if a step of this kind that kept everything has exceeded the budget.
    held      the most bytes that autograd saves in it between two of its reads, as in one of several passes; 0: not
              known.
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
    outgrown: bool = False
    held: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes that autograd saves at once; a tensor that is saved twice counts twice. Of all packs if not known."""
        return self.held or sum(map(nbytes_of, self.packs))

    @property
    def keeps(self) -> bool:
        """True if its plan evicts nothing."""
        return self.obeyed is not None and not self.obeyed.decisions

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
