"""Measures the peak of steps on a GPU, with what the program does between them: its allocator counts all bytes.

Nothing measures steps on a CPU: only a dispatch mode sees all tensors there, and it takes time and changes gradients.
"""

from typing import Any

from minidl.torch.course import Course, Phase
from minidl.torch.states import States


class Gauge:
    """Measures steps. allocator: ``torch.cuda``, or None on a CPU.
    bytes   bytes on the device when this step began, without optimizer state that can leave; 0 on a CPU."""

    def __init__(self, allocator: Any, course: Course, states: States) -> None:
        self.allocator, self.course, self.states = allocator, course, states
        self.bytes = 0

    def begin(self) -> None:
        """Begin a step, whose phase has been chosen before."""
        if self.allocator is not None:
            self.bytes = self.allocator.memory_allocated() - self.states.there_bytes

    def end(self) -> int:
        """End the step; return its peak in bytes, or 0 if it was not measured."""
        # The recorder sets the peak to 0 at each call.
        measured = self.allocator is not None and self.course.phase is not Phase.MEASURED
        return int(self.allocator.max_memory_allocated()) if measured else 0

    def exceeded(self) -> None:
        """Note that the step exceeded the budget: forget its peak, else each later step would seem to exceed it."""
        self.allocator.reset_peak_memory_stats()
