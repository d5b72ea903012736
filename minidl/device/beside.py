"""Sums between ranks on a simulated device: they run beside the compute stream, one after the other.

The first work that uses their memory waits for them. Such memory is known by its offset.
"""

from collections.abc import Iterable

from minidl.device.clock import COMPUTE, VirtualClock
from minidl.device.contract import Operand

BESIDE = frozenset({"sum_ranks"})  # operations that run so


class Beside:
    """The sums between ranks that have not ended. ends: offset of memory that a sum uses -> the time of its end."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ends: dict[int, float] = {}
        self._latest = 0.0  # when the last of them ends

    def start(self, seconds: float, operands: Iterable[Operand]) -> None:
        """Start a sum on these operands, which begins when earlier sums, and the work launched so far, have ended.
        seconds: its duration."""
        self._latest = max(self._latest, self.clock.now()) + seconds
        self.ends.update({operand.block.offset: self._latest for operand in operands})

    def hold(self, stream: int, offset: int) -> None:
        """Make a stream wait for the sum that uses the memory at ``offset``, if there is one."""
        end = self.ends.pop(offset, None)
        if end is not None:
            self.clock.hold(stream, end)

    def hold_for(self, operands: Iterable[Operand]) -> None:
        """Make the compute stream wait for the sums that use these operands' memory."""
        for operand in operands:
            self.hold(COMPUTE, operand.block.offset)

    def forget_ended(self) -> None:
        """Remove the sums that have ended from ``ends``."""
        now = self.clock.now()
        self.ends = {offset: end for offset, end in self.ends.items() if end > now}
