"""A placement of one's own, next fit, beside those that there are: python examples/own_placement.py

A placement sees the holes that are large enough, smallest first, and says where a block goes. The arena keeps blocks
apart, unites what is freed and remembers who used it, so a placement cannot break anything, only waste memory or time.
A package that offers it as an entry point of "minidl.placements" makes it a choice of train.py's --placement, too.
"""

from collections.abc import Sequence

import minidl
from minidl import models
from minidl.errors import OutOfMemory
from minidl.meta import int64
from minidl.ops import cross_entropy
from minidl.optim import SGD
from minidl.outside.units import format_bytes
from minidl.placements import Hole, Place, Placement


class NextFit(Placement):
    """The first hole above the block that was placed last; after the highest it begins again at the lowest."""

    name = "next-fit"

    def __init__(self) -> None:
        self.last = 0

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        above = [hole for hole in holes if hole.offset >= self.last]
        return Place(min(above or holes).offset, nbytes)

    def taken(self, place: Place) -> None:
        self.last = place.offset


def measure(placement: str | Placement) -> str:
    """What the third training step of ResNet-50 costs at batch 256 in 12 GiB of a simulated P100; it needs 20."""
    with minidl.Runtime(device="sim:p100", memory_budget="12GiB", policy="passive", placement=placement) as runtime:
        model = models.create("resnet50")
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        try:
            for _ in range(3):
                before = runtime.stats()
                with runtime.iteration():
                    images = runtime.tensor(None, shape=(256, 3, 224, 224))
                    labels = runtime.tensor(None, shape=(256,), dtype=int64)
                    loss = cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        except OutOfMemory as error:
            return str(error)
        step = runtime.stats().since(before)
        return (f"{step.seconds:.2f} s a step, {format_bytes(step.moved_bytes)} moved within it, "
                f"{format_bytes(step.swapped_out_bytes)} swapped out")


if __name__ == "__main__":  # an entry point imports this file, and trains nothing
    for placement in ("best-fit", "first-fit", "bfc", "caching", NextFit()):
        name = placement if isinstance(placement, str) else placement.name
        print(f"{name:10} {measure(placement)}")
