"""Records a step: turns on and off, together, the recorder of calls, the notes of its trace, and calls' origins."""

from __future__ import annotations

import torch

from minidl.torch.optimizers import gradients_of, parameters_of, state_of
from minidl.torch.origins import Origins
from minidl.torch.recorder import Recorder
from minidl.torch.saved import Saved
from minidl.torch.seen import Kind
from minidl.torch.states import States
from minidl.torch.tracing import Notes


class Observer:
    """Records steps, from which plans are made. notes: the current step's trace so far; None if it is not recorded."""

    def __init__(self, recorder: Recorder, saved: Saved, states: States) -> None:
        self.recorder, self.saved, self.states = recorder, saved, states
        self.origins = Origins()
        self.notes: Notes | None = None

    def begin(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Start to record the step that begins now. optimizer: the one that ended the last step; None if none did."""
        self.recorder.enter()
        self.origins.enter()
        lasting: dict[Kind, list[torch.Tensor]] = {}
        if optimizer is not None:
            lasting = {Kind.PARAMETER: parameters_of(optimizer), Kind.GRADIENT: gradients_of(optimizer),
                       Kind.STATE: [t for t in state_of(optimizer) if not self.states.waits(t)]}
        notes = Notes(self.recorder, self.recorder.begin(t for each in lasting.values() for t in each), self.origins)
        for kind, tensors in lasting.items():
            notes.know(kind, tensors)
        self.notes = self.recorder.listener = self.saved.watch = notes
        self.states.brought = notes.brought
        self.recorder.on = True

    def end(self) -> None:
        """Stop recording, and forget the notes of the step."""
        self.notes = self.recorder.listener = self.saved.watch = self.states.brought = None
        self.origins.leave()

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """In a recorded step, note which tensors are parameters and gradients of an optimizer that is about to step."""
        if self.notes is not None:
            self.notes.know(Kind.PARAMETER, parameters_of(optimizer))
            self.notes.know(Kind.GRADIENT, gradients_of(optimizer))

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """In a recorded step, note which tensors are the state of an optimizer that has just stepped."""
        if self.notes is not None:
            self.notes.know(Kind.STATE, state_of(optimizer))
