"""Iterations of random shapes, which never come again: ``python -m tests.campaigns.shapes --count N``.

Each trains a small network whose depth, widths and batch are drawn anew, in memory that is too little for most of them;
the policies take turns in one process, each with a runtime that lives as long as the campaign. What the process has in
memory and what an iteration takes must stay as they were: of ten parts the last is compared with the third, as before
that everything that remembers fills up to its bound.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from minidl import Runtime, ops
from minidl.optim import SGD, Adam
from minidl.runtime import parameter

POLICIES = ("auto", "capuchin", "passive", "dtr-swap", "recompute")
PARTS = 10
WIDEST = 48
BUDGET, HOST = 40 << 10, 1 << 20  # bytes: the update of the weights needs 36 KiB, the largest iteration some 70
MOST_GROWN_BYTES, MOST_SLOWER = 32 << 20, 1.3


@dataclass(frozen=True)
class Part:
    """A tenth of the campaign: bytes of the process afterwards, processor seconds of an iteration, and what a runtime
    remembers."""

    resident_bytes: int
    seconds: float
    remembered: dict[str, int]


def campaign(count: int, *, seed: int = 0, policies: tuple[str, ...] = POLICIES) -> Iterator[Part]:
    """Run so many iterations in ten parts."""
    programs = [_Program(policy, seed) for policy in policies]
    for part in range(PARTS):
        start = process_time()
        steps = range(part * count // PARTS, (part + 1) * count // PARTS)
        for number in steps:
            programs[number % len(programs)].iterate()
        seconds = (process_time() - start) / max(len(steps), 1)
        gc.collect()
        yield Part(_resident_bytes(), seconds, {name: max(p.remembered()[name] for p in programs)
                                                for name in programs[0].remembered()})


class _Program:
    """A network of one parameter matrix, of which every layer takes another part."""

    def __init__(self, policy: str, seed: int) -> None:
        self.draw = random.Random(f"{policy} {seed}")
        self.runtime = Runtime("cpu:virtual", policy=policy, memory_budget=BUDGET, host_memory=HOST)
        with self.runtime:
            self.weight = parameter((WIDEST, WIDEST))
            self.weight.fill_(0.02)
            make = self.draw.choice([lambda ps: SGD(ps, lr=0.01), lambda ps: Adam(ps, lr=0.01)])
            self.optimizer = make([self.weight])

    def iterate(self) -> None:
        """Forward, backward and an update, of shapes that are drawn."""
        draw = self.draw
        widths = [draw.randint(1, WIDEST) for _ in range(draw.randint(2, 6))]
        with self.runtime, self.runtime.iteration():
            x: Any = self.runtime.tensor(np.ones((draw.randint(1, 24), widths[0]), np.float32))
            for here, there in zip(widths[:-1], widths[1:], strict=True):
                x = ops.tanh(x @ self.weight.narrow(0, 0, here).narrow(1, 0, there).contiguous())
            self.optimizer.zero_grad()
            x.mean().backward()
            self.optimizer.step()
            if not np.isfinite(self.weight.numpy()).all():
                raise AssertionError(f"{self.runtime.policy.name}: {widths}: the weights are no numbers any more")

    def remembered(self) -> dict[str, int]:
        """How many entries each part of the runtime has."""
        guide, executor = self.runtime.guide, self.runtime.executor
        return {"signatures": len(executor.signatures.by_key), "saved": len(executor.signatures.saved),
                "known": len(guide.entries) if guide is not None else 0,
                "seen": len(guide._measured) if guide is not None else 0,
                "residents": len(self.runtime.memory.live())}


def _resident_bytes() -> int:
    """Of this process now, where the system says so; else the most it had."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def main() -> int:
    """The command; 1 if memory or time per iteration have grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.shapes", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many iterations (default: 100000)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    parts = []
    for part in campaign(given.count, seed=given.seed):
        parts.append(part)
        print(f"{len(parts)}/{PARTS}: {part.resident_bytes >> 20} MiB, {part.seconds * 1e3:.2f} ms an iteration, "
              f"{part.remembered}", flush=True)
    grown = parts[-1].resident_bytes - parts[2].resident_bytes
    slower = parts[-1].seconds / parts[2].seconds
    print(f"{given.count} iterations: {grown / 2**20:+.1f} MiB, {slower:.2f} times as long")
    return int(grown > MOST_GROWN_BYTES or slower > MOST_SLOWER)


if __name__ == "__main__":
    sys.exit(main())
