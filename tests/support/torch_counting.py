"""Counts the bytes of tensors on a CPU as a GPU's allocator does."""

import contextlib
import gc

import minidl.torch


class Allocator:
    """A GPU's allocator, by a meter of this process."""

    def __init__(self, meter):
        self.meter, self.resets = meter, 0

    def memory_allocated(self):
        return self.meter.bytes

    def max_memory_allocated(self):
        return self.meter.peak

    def reset_peak_memory_stats(self):
        self.resets += 1
        self.meter.peak = self.meter.bytes


@contextlib.contextmanager
def counted(memory, known):
    """As on a GPU, the bytes of ``known`` and of all tensors that come later are counted under ``memory``."""
    with minidl.torch.Meter(known) as meter:
        if isinstance(memory, minidl.torch.managed):
            memory.recorder.allocator = memory.gauge.allocator = Allocator(meter)
        with memory:
            yield


def alone():
    """Hide all tensors that exist now from the garbage collector's list: on this GPU there is nothing yet."""
    gc.collect()
    gc.freeze()
