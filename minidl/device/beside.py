"""Exchanges between ranks that run beside a simulated device's compute stream, one after the other: sums, and updated
rows. The first work that uses their memory waits for them. Such memory is known by its offset.
"""

from collections.abc import Iterable

from minidl.device.clock import COMPUTE, VirtualClock
from minidl.device.contract import Operand

BESIDE = frozenset({"sum_ranks", "sum_rows", "gather_rows_"})  # operations that run so


class Beside:
    """The sums on their way. ends: by the offset of memory that one uses, when it ends."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ends: dict[int, float] = {}
        self._latest = 0.0  # when the last of them ends

    def start(self, seconds: float, operands: Iterable[Operand]) -> None:
        """Start a sum on these operands after those on their way, and after the compute stream's work so far."""
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
        """Forget the sums that have ended."""
        now = self.clock.now()
        self.ends = {offset: end for offset, end in self.ends.items() if end > now}
