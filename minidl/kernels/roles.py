"""The operations that are convolutions, and the roles of their operands.

Code that chooses or times the algorithms of a convolution looks here, so a new operation is one more line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Role:
    """The positions of x [N, C, H, W], w [K, C / groups, R, S] and y [N, K, P, Q] among one operation's operands.
    The number of groups of channels follows from x and w.

    kind      which of the three is computed: ``conv2d`` y, ``conv2d_dgrad`` x, ``conv2d_wgrad`` w
    x, w, y   their positions among the operands: the output is 0, the inputs follow
    relu      the result is max(0, y); cuts, workspaces and times are those of the plain operation
    """

    kind: str
    x: int
    w: int
    y: int
    relu: bool = False

    def pick(self, output: T, inputs: Sequence[T]) -> tuple[T, T, T]:
        """Return (x, w, y) from the output and the inputs of a call."""
        operands = (output, *inputs)
        return operands[self.x], operands[self.w], operands[self.y]


ROLES: dict[str, Role] = {
    "conv2d": Role("conv2d", 1, 2, 0),
    "conv2d_relu": Role("conv2d", 1, 2, 0, relu=True),
    "conv2d_dgrad": Role("conv2d_dgrad", 0, 2, 1),
    "conv2d_wgrad": Role("conv2d_wgrad", 2, 0, 1),
}
