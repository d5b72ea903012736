"""Depthwise convolutions at MobileNet's shapes on the CPU, beside their composition and beside PyTorch, in turns.

    python -m bench.depthwise > bench/results/depthwise.md

All windows are 3 x 3. One process and one thread. Times are the processor's, medians of the turns; a ratio is the
median of the turns' ratios to PyTorch's time. A step is that of a program: results are new tensors, and the gradients
are those of both operands.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import numba
import numpy as np

import minidl
from minidl import Runtime

TURNS, WARM, BATCH = 25, 3, 2
SHAPES = ((32, 112, 1), (64, 112, 2), (128, 56, 1), (256, 28, 1), (512, 14, 1), (1024, 7, 1))  # channels, size, stride
Step = Callable[[], tuple[float, float]]


def step(library: Any, functional: Any, x: Any, w: Any, stride: int, groups: int) -> tuple[float, float]:
    """Return the processor's seconds of the forward pass and of the backward pass."""
    a, b = library.tensor(x, requires_grad=True), library.tensor(w, requires_grad=True)
    start = process_time()
    y = functional.conv2d(a, b, None, stride, 1, 1, groups)
    y.detach().numpy()  # waits
    forward = process_time() - start
    gradient = library.ones_like(y)
    gradient.detach().numpy()
    start = process_time()
    y.backward(gradient)
    a.grad.numpy(), b.grad.numpy()
    return forward, process_time() - start


def steps(shape: tuple[int, int, int]) -> dict[str, Step]:
    """Return a step of each kind for one shape."""
    import torch

    torch.set_num_threads(1)
    channels, size, stride = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, channels, size, size)).astype("f4")
    w = rng.standard_normal((channels, 1, 3, 3)).astype("f4")

    def ours(*, fused: bool) -> Step:
        runtime = Runtime("cpu", memory_budget="1GiB", policy="none")
        runtime.device.fuses_depthwise = lambda meta: fused  # type: ignore[method-assign, assignment]

        def run() -> tuple[float, float]:
            with runtime:
                return step(minidl, minidl.nn.functional, x, w, stride, channels)
        return run
    return {"PyTorch": lambda: step(torch, torch.nn.functional, x, w, stride, channels),
            "one operation": ours(fused=True), "composed": ours(fused=False)}


def main() -> None:
    """Print the table."""
    numba.set_num_threads(1)
    print(f"Made by `python -m bench.depthwise`: batch {BATCH}, float32, one thread; milliseconds, and ratios to "
          "PyTorch's.\n")
    print("| channels x size, stride | pass | PyTorch | one operation | composed | ratio | ratio composed |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for shape in SHAPES:
        kinds = steps(shape)
        turns = [{name: run() for name, run in kinds.items()} for _ in range(WARM + TURNS)][WARM:]
        for i, name in enumerate(("forward", "backward")):
            times = [f"{1e3 * median(turn[kind][i] for turn in turns):.2f}" for kind in kinds]
            ratios = [f"{median(turn[kind][i] / turn['PyTorch'][i] for turn in turns):.1f}"
                      for kind in list(kinds)[1:]]
            print(f"| {shape[0]} x {shape[1]}^2, {shape[2]} | {name} | " + " | ".join(times + ratios) + " |")


if __name__ == "__main__":
    main()
