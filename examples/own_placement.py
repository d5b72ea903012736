"""A custom placement, next fit, compared with the built-in ones: python examples/own_placement.py

A placement receives the holes that are large enough, smallest first, and chooses the address of a block. The arena
keeps blocks apart, merges free blocks and waits for earlier users, so a placement can only waste memory or time, never
break anything. An entry point of "minidl.placements" in a package adds the placement to the choices of train.py
--placement.
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
    """A placement that chooses the first hole above the last placed block, and wraps around to the lowest hole."""

    name = "next-fit"

    def __init__(self) -> None:
        self.last = 0

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place:
        above = [hole for hole in holes if hole.offset >= self.last]
        return Place(min(above or holes).offset, nbytes)

    def taken(self, place: Place) -> None:
        self.last = place.offset


def measure(placement: str | Placement) -> str:
    """Return the costs of ResNet-50's third training step at batch 256, which needs 20 GiB, in 12 GiB of a P100."""
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


if __name__ == "__main__":  # an entry point imports this file without running the comparison
    for placement in ("best-fit", "first-fit", "bfc", "caching", NextFit()):
        name = placement if isinstance(placement, str) else placement.name
        print(f"{name:10} {measure(placement)}")
