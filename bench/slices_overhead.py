"""The cost of slices in a training step on the CPU where everything fits: k slices against one, in turns.

    python -m bench.slices_overhead [--cases resnet18,...] [--slices 4] [--times 1] [--rounds 15]
                                    > bench/results/slices_overhead.md

Both trainings are in one process and take turns, so other work on the machine disturbs both alike. A ratio is the
median of the rounds' ratios, of the wall clock and of the processors' time (of all threads of this process). Nothing is
evicted, so the cost is that of more calls, sums over slices, and smaller kernels. ``--times`` multiplies the batch:
these costs grow with slices and weights, not with examples.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from minidl import Runtime, models, nn
from minidl.models import bert, gpt
from minidl.models.text import Text
from minidl.optim import SGD, AdamW, Optimizer
from minidl.parts.slicing.slicer import Slicer, slicer_of

WARM_STEPS = 2
CLASSES = 10
GPT_TINY = gpt.GPTConfig(2, 128, 2, vocab_size=2000, n_positions=128)  # the width and depth of bert-tiny


@dataclass(frozen=True)
class Case:
    """The batch of a network, and the size of its inputs: pixels a side, or tokens of a sequence."""

    batch: int
    size: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.size}"


CASES = {"resnet18": Case(32, 64), "vgg11": Case(32, 64), "unet-small": Case(8, 96), "densenet121": Case(32, 64),
         "bert-tiny": Case(32, 128), "gpt2-tiny": Case(32, 128)}


def step_of(name: str, case: Case, runtime: Runtime) -> Callable[[], None]:
    """Return a training step in the current runtime: with SGD with momentum, or with AdamW for text."""
    known = models.find(name) if name in models.MODELS else None
    model: nn.Module
    if name == "gpt2-tiny":
        model = gpt.GPT(GPT_TINY)
    else:
        options = {} if name == "bert-tiny" or known is None or known.pixel_labels else {
            "num_classes": CLASSES, "image_size": case.size}
        model = models.create(name, **options)
    text = name in ("bert-tiny", "gpt2-tiny")
    optimizer: Optimizer = (AdamW(model.parameters(), lr=1e-4) if text
                            else SGD(model.parameters(), lr=1e-3, momentum=0.9))
    rng = np.random.default_rng(0)
    images = rng.standard_normal((case.batch, 3, case.size, case.size), np.float32)
    shape = (case.batch, case.size, case.size) if known is not None and known.pixel_labels else (case.batch,)
    labels = rng.integers(0, 2, shape)

    def loss() -> Any:
        if name == "bert-tiny":
            return model(*bert.synthetic_batch(runtime, case.batch, Text(length=case.size)))
        if known is None:
            drawn = Text(length=case.size, predictions=case.size, vocabulary=GPT_TINY.vocab_size)
            return model(*gpt.synthetic_batch(runtime, case.batch, drawn))
        return known.loss(model, runtime.tensor(images), runtime.tensor(labels))

    def step() -> None:
        with runtime.iteration():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            value.item() if runtime.device.has_values else None
    return step


@dataclass(frozen=True)
class Seconds:
    """The seconds of a step by the wall clock, and the processor seconds of all threads."""

    wall: float
    processors: float


def measured(runtime: Runtime, step: Callable[[], None]) -> Seconds:
    """Carry out one step and wait for its last kernel; return its seconds."""
    with runtime:
        wall, processors = time.perf_counter(), time.process_time()
        step()
        for stream, position in enumerate(runtime.device.positions):
            runtime.device.synchronize(stream, position)
        return Seconds(time.perf_counter() - wall, time.process_time() - processors)


def row(name: str, slices: int, times: int, rounds: int) -> str:
    """Measure one network; return its line of the table."""
    case = replace(CASES[name], batch=times * CASES[name].batch)
    runtimes = [Runtime("cpu", memory_budget="8GiB", host_memory=0, policy="none", slices=k) for k in (1, slices)]
    steps, calls = [], []
    for runtime in runtimes:
        with runtime:
            step = step_of(name, case, runtime)
        for _ in range(WARM_STEPS):
            measured(runtime, step)
        names: list[str] = []
        runtime.executor.inspect = lambda op, inputs, outputs, names=names: names.append(op)
        measured(runtime, step)
        runtime.executor.inspect = None
        steps.append(step)
        calls.append(len(names))
    slicer = slicer_of(runtimes[1].executor)
    assert isinstance(slicer, Slicer)
    joined = slicer.joined.total() // (WARM_STEPS + 1)
    pairs = []
    for number in range(rounds):
        taken = {i: measured(runtimes[i], steps[i]) for i in ((0, 1) if number % 2 else (1, 0))}
        pairs.append((taken[0], taken[1]))
    wall, processors = (median(getattr(cut, which) / getattr(whole, which) for whole, cut in pairs)
                        for which in ("wall", "processors"))
    own = [median(pair[i].processors for pair in pairs) for i in (0, 1)]
    return (f"| {name} | {case} | {1e3 * median(whole.wall for whole, _ in pairs):.0f} | {calls[0]:,} "
            f"| {calls[1]:,} | {joined} | {100 * (wall - 1):+.1f}% | {100 * (processors - 1):+.1f}% "
            f"| {1e6 * (own[1] - own[0]) / (calls[1] - calls[0]):.0f} |")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--times", type=int, default=1, help="the batch")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print(f"# What slices cost where all fits\n\nMade by `python -m bench.slices_overhead --cases {args.cases} "
          f"--slices {args.slices} --times {args.times} --rounds {args.rounds}`:\na step on the "
          f"CPU in {args.slices} slices against one, in turns, medians of the rounds' ratios. "
          "Batch: examples x pixels a side, or tokens.\n")
    print("| network | batch | ms whole | calls | calls in slices | joined | wall clock | processors "
          "| processors' us for a call more |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in args.cases.split(","):
        print(row(name, args.slices, args.times, args.rounds), flush=True)


if __name__ == "__main__":
    main()
