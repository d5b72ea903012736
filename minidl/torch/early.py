"""Checks before the first step has ended: finds the optimizers, and refuses a budget below what any step needs.

When autograd saves its first tensor, the optimizers are found among the objects of the process. One of them belongs to
this program if the forward pass saves one of its parameters. Optimizers that are made later are checked as they step.
"""

from collections.abc import Callable

import torch

from minidl.torch.budget import refuse_early
from minidl.torch.optimizers import gradients_of, nbytes_of, parameters_of, state_of
from minidl.torch.seen import Kind
from minidl.torch.states import States
from minidl.torch.there import all_of, kinds


class Early:
    """Watches the first step. saw: to be called with each tensor that autograd saves; None: nothing to look for."""

    def __init__(self, budget: int, states: States) -> None:
        self.budget, self.states = budget, states
        self.saw: Callable[[torch.Tensor], None] | None = None
        self._of: dict[int, list[torch.optim.Optimizer]] | None = None  # by the id of a parameter; None: not looked for

    def begin(self) -> None:
        """Start watching."""
        self.saw = self._saw

    def end(self) -> None:
        """Stop watching: the first step has ended."""
        self.saw = self._of = None

    def _saw(self, tensor: torch.Tensor) -> None:
        """For an optimizer's parameter, send the optimizer's state to the host. May raise BudgetTooSmall."""
        if self._of is None:
            self._of = _by_parameter()
        found = self._of.get(id(tensor if tensor._base is None else tensor._base), [])
        if not found:
            return
        self._of = {i: [o for o in optimizers if o not in found] for i, optimizers in self._of.items()}
        for optimizer in found:
            self.states.away(optimizer, all_of_it=True)
            self._refuse(optimizer, {Kind.PARAMETER: parameters_of(optimizer)}, "before the first step")

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise BudgetTooSmall if an optimizer's parameters, gradients and state on the device exceed the budget."""
        self._refuse(optimizer, {Kind.PARAMETER: parameters_of(optimizer), Kind.GRADIENT: gradients_of(optimizer)},
                     "before the optimizer steps")

    def _refuse(self, optimizer: torch.optim.Optimizer, there: dict[Kind, list[torch.Tensor]], when: str) -> None:
        there[Kind.STATE] = [t for t in state_of(optimizer) if not self.states.waits(t)]
        on_device = {kind.value: nbytes_of([t for t in tensors if t.device.type == self.states.device_type])
                     for kind, tensors in there.items()}
        refuse_early(self.budget, on_device, when)


def _by_parameter() -> dict[int, list[torch.optim.Optimizer]]:
    """Return all optimizers of the process, by the id of each of their parameters."""
    found = dict[int, list[torch.optim.Optimizer]]()
    for optimizer in all_of(kinds(torch.optim.Optimizer)):
        for p in parameters_of(optimizer):
            found.setdefault(id(p), []).append(optimizer)
    return found
