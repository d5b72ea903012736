"""Measures the peak of the bytes on the device over whole steps, with what the program does between them.

A GPU's allocator counts in every step. On a CPU a meter sees all calls of some steps that follow a plan: of step
4, 8, 16 and so on, of a step in which a module is called without gradients, as for validation, and never was before,
and of the step after one that exceeded the budget.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from minidl.torch.beneath import compiled
from minidl.torch.course import Course, Phase
from minidl.torch.meter import Meter
from minidl.torch.states import States
from minidl.torch.there import on_device

MOST_CALLS = 10_000  # different calls of modules without gradients that are remembered


def chosen(number: int) -> bool:
    """True if the step with this number, from 1, is measured on a CPU, and runs with hooks in any case."""
    return not number & (number - 1)


class Gauge:
    """Measures steps. allocator: ``torch.cuda``, or None on a CPU.

    chosen  True if this step is one of those that have hooks, and that are measured on a CPU.
    bytes   bytes on the device when this step began, without optimizer state that can leave; 0 if they are not known.
    """

    def __init__(self, device_type: str, allocator: Any, course: Course, states: States) -> None:
        self.device_type, self.allocator, self.course, self.states = device_type, allocator, course, states
        self.chosen = self._next = self._follows = False  # follows: this step is measured since the last exceeded
        self.bytes = 0
        self._meter: Meter | None = None
        self._called: set[tuple[int, Any]] = set()
        self._handle: Any = None
        self._thread = 0

    @property
    def slows(self) -> bool:
        """True if measuring takes time from this step, so that its duration says little."""
        return self._meter is not None

    def begin(self) -> None:
        """Begin a step, whose phase has been chosen before."""
        self._follows, self._next, self._thread = self._next, False, get_ident()
        self.chosen = self._follows or chosen(self.course.steps + 1)
        if self.allocator is not None:
            self.bytes = self.allocator.memory_allocated() - self.states.there_bytes
            return
        self.bytes = 0
        if self.chosen:
            self._measure()
        if self._handle is None and not compiled():  # hooks on modules disturb compiled code
            self._handle = register_module_forward_pre_hook(self._before)

    def _measure(self) -> None:
        # The meter is a mode, and has no effect on the bits of steps that may be recorded.
        if self.course.phase is Phase.GUIDED and not self.course.unrecorded and not compiled():
            self._meter = Meter(on_device(self.device_type), self.device_type)
            self.bytes = self._meter.bytes - self.states.there_bytes
            self._meter.enter()

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() or get_ident() != self._thread or torch._C._current_graph_task_id() != -1:
            return
        call = id(module), getattr(args[0], "shape", None) if args else None
        if call in self._called or len(self._called) > MOST_CALLS:
            return
        if self._meter is None:
            self._measure()
            self.bytes = 0  # the pass has begun, so its own tensors are among them
        if self._meter is not None:
            self._called.add(call)

    def end(self) -> int:
        """End the step; return its peak in bytes, or 0 if it was not measured."""
        if self.allocator is not None:
            return 0 if self.course.phase is Phase.MEASURED else int(self.allocator.max_memory_allocated())
        meter, self._meter = self._meter, None
        if meter is None:
            return 0
        meter.leave()
        return meter.peak

    def give_up(self) -> None:
        """Stop measuring this step on a CPU, since it departs from its plan."""
        if self._meter is not None:
            self._meter.leave()
            self._meter = None

    def exceeded(self) -> None:
        """Note that the step exceeded the budget: the next one is measured, too, but not each one after it."""
        self._next = not self._follows
        if self.allocator is not None:
            self.allocator.reset_peak_memory_stats()  # else each later step would seem to exceed it

    def stop(self) -> None:
        """End the measuring of all steps."""
        self.give_up()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
