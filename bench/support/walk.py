"""The walk of a reader: the functions of minidl that one managed call of a program enters, and their files.

A step of ResNet-18 is traced on the simulator, a function call at a time. Of each kind of call the middle one by the
number of its files is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import minidl
from minidl import Runtime, Tensor, models
from minidl import dispatch as calls
from minidl.meta import int64
from minidl.op import Attrs, Op
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD

ROOT = Path(minidl.__file__).parent
KINDS = {"out": ("passive", "evicts"), "in": ("passive", "swaps in"), "replay": ("dtr-swap", "replays")}
BATCH, BUDGET = 64, "0.8GiB"


@dataclass
class Walk:
    """One call of the program: what it did, and the functions that it went through: (depth, file, function)."""

    op: str
    kinds: set[str] = field(default_factory=set)
    steps: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Return the files in the order in which they are first entered."""
        return list(dict.fromkeys(file for _, file, _ in self.steps))

    @property
    def lines(self) -> int:
        """Return the number of lines of all its files together."""
        return sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in self.files)

    def depth(self, function: str) -> int:
        """Return how many calls below the entry a function is first called."""
        return min(depth for depth, _, name in self.steps if name == function)

    @property
    def changes(self) -> int:
        """Return how often the walk goes from one file to another."""
        return sum(a[1] != b[1] for a, b in zip(self.steps, self.steps[1:], strict=False))


@contextmanager
def traced(walk: Walk) -> Iterator[None]:
    """Return a context in which each function of minidl that is called is added to the walk."""
    depth = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        file = frame.f_code.co_filename
        if event in ("call", "return") and file.startswith(str(ROOT)):
            if event == "call":
                walk.steps.append((depth, Path(file).relative_to(ROOT).as_posix(), frame.f_code.co_qualname))
            depth += 1 if event == "call" else -1
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walks(policy: str) -> list[Walk]:
    """Every call of one training step under a policy, after three steps that warm up."""
    found: list[Walk] = []
    with Runtime("sim:p100", memory_budget=BUDGET, policy=policy) as runtime:
        model = models.create("resnet18", num_classes=10)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            with runtime.iteration():
                images = runtime.tensor(None, shape=(BATCH, 3, 224, 224))
                loss = cross_entropy(model(images), runtime.tensor(None, shape=(BATCH,), dtype=int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for _ in range(3):
            step()
        run = calls._run

        def noted(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> Any:
            walk, before = Walk(op.name), runtime.stats()
            with traced(walk):
                results = run(op, tensors, attrs)
            did = runtime.stats().since(before)
            walk.kinds = {kind for kind, nbytes in (("out", did.swapped_out_bytes), ("in", did.swapped_in_bytes),
                                                    ("replay", did.recomputed_bytes)) if nbytes}
            found.append(walk)
            return results
        calls._run = noted  # for this step alone
        try:
            step()
        finally:
            calls._run = run
    return found


def typical(kind: str) -> Walk:
    """Return, of the calls of this kind alone, the one with the middle number of files."""
    of_kind = [walk for walk in walks(KINDS[kind][0]) if walk.kinds == {kind}]
    return sorted(of_kind, key=lambda walk: len(walk.files))[len(of_kind) // 2]
