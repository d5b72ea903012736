"""Grouped convolutions at ResNeXt's shapes on the CPU, beside their composition and beside PyTorch, in turns.

    python -m bench.grouped > bench/results/grouped.md

All windows are 3 x 3 with padding 1. One process and one thread. Times are the processor's, medians of the turns; a
ratio is the median of the turns' ratios to PyTorch's time. A step is that of a program: results are new tensors, and
the gradients are those of both operands. The composition is a convolution for each group, and a concatenation.
"""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np

import minidl
from bench.depthwise import WARM, Step, step
from minidl import Runtime, ops

TURNS, BATCH = 9, 2
# Groups, channels of a group, height and width of the image, stride: ResNeXt-50 (32x4d), then -101 (64x4d, 32x8d).
SHAPES = ((32, 4, 56, 1), (32, 8, 56, 2), (32, 8, 28, 1), (32, 16, 14, 1), (32, 32, 7, 1),
          (64, 4, 56, 1), (64, 8, 28, 1), (64, 16, 14, 1), (64, 32, 7, 1),
          (32, 16, 28, 1), (32, 32, 28, 2), (32, 32, 14, 1), (32, 64, 7, 1))


def composed(x: Any, w: Any, bias: None, stride: int, padding: int, dilation: int, groups: int) -> Any:
    """Return ``minidl.nn.functional.conv2d`` of these arguments, by one call for each group."""
    parts = zip(ops.split(x, x.shape[1] // groups, 1), ops.split(w, w.shape[0] // groups), strict=True)
    return ops.concat([ops.conv2d(a, b, stride=stride, padding=padding) for a, b in parts], 1)


def steps(groups: int, width: int, size: int, stride: int) -> dict[str, Step]:
    """Return a step of each kind for one shape."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, groups * width, size, size)).astype("f4")
    w = rng.standard_normal((groups * width, width, 3, 3)).astype("f4")

    def ours(functional: Any) -> Step:
        runtime = Runtime("cpu", memory_budget="1GiB", policy="none")

        def run() -> tuple[float, float]:
            with runtime:
                return step(minidl, functional, x, w, stride, groups)
        return run
    return {"PyTorch": lambda: step(torch, torch.nn.functional, x, w, stride, groups),
            "one operation": ours(minidl.nn.functional), "composed": ours(SimpleNamespace(conv2d=composed))}


def main() -> None:
    """Print the table."""
    numba.set_num_threads(1)
    print(f"Made by `python -m bench.grouped`: batch {BATCH}, float32, one thread; milliseconds, and ratios to "
          "PyTorch's.\n")
    print("| groups x channels x size, stride | pass | PyTorch | one operation | composed | ratio | ratio composed |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for shape in SHAPES:
        kinds = steps(*shape)
        turns = [{name: run() for name, run in kinds.items()} for _ in range(WARM + TURNS)][WARM:]
        for i, name in enumerate(("forward", "backward")):
            times = [f"{1e3 * median(turn[kind][i] for turn in turns):.2f}" for kind in kinds]
            ratios = [f"{median(turn[kind][i] / turn['PyTorch'][i] for turn in turns):.1f}"
                      for kind in list(kinds)[1:]]
            print(f"| {' x '.join(map(str, shape[:3]))}^2, {shape[3]} | {name} | " + " | ".join(times + ratios) + " |",
                  flush=True)


if __name__ == "__main__":
    main()
