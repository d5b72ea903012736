"""Every convolution of some networks on the CPU beside PyTorch's: forward, and the gradients of input and weights.

    python -m bench.cpu_kernels [--networks resnet18,vgg11,resnet50] [--batch 32] [--threads 2] [--rounds 5]
                                [--out FILE]

minidl and PyTorch (eager, as installed) are processes of their own, so that no thread pool disturbs another, and take
turns. A time is the median of some calls; a ratio, PyTorch's time to minidl's, the median of the rounds' ratios. The
last line of a network weighs each shape by how often it occurs. With one thread, times are the processor's, which tell
something even where others use the machine. minidl's workspace is allocated beforehand, since the arena provides it;
PyTorch allocates its own.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
OPS = ("conv2d", "conv2d_dgrad", "conv2d_wgrad")
CALLS, SECONDS = 9, 0.15  # in a turn: calls at most, and the time after which it ends


class Layer(NamedTuple):
    """A convolution of square images [batch, channels, size, size] with square windows, padded to keep the size."""

    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int

    def window(self) -> dict[str, tuple[int, int]]:
        return {"stride": (self.stride,) * 2, "padding": (self.kernel // 2,) * 2}


def vgg11(size: int) -> Iterator[Layer]:
    """Yield the convolutions of VGG-11 (table 1 of its paper, column A) for images of ``size`` pixels a side."""
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512):
        if width:
            yield Layer(channels, size, width, 3, 1)
            channels = width
        else:
            size //= 2


def resnet(size: int, blocks: tuple[int, ...], *, bottleneck: bool) -> Iterator[Layer]:
    """Yield the convolutions of a ResNet (table 1 of its paper). A bottleneck has its stride in its 3 x 3 convolution.
    """
    yield Layer(3, size, 64, 7, 2)
    size, channels = size // 4, 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            width, stride = 64 << stage, 2 if stage and not block else 1
            outputs = 4 * width if bottleneck else width
            if channels != outputs:
                yield Layer(channels, size, outputs, 1, stride)
            if bottleneck:
                yield Layer(channels, size, width, 1, 1)
            yield Layer(width if bottleneck else channels, size, width, 3, stride)
            size //= stride
            yield Layer(width, size, outputs, 1, 1) if bottleneck else Layer(width, size, width, 3, 1)
            channels = outputs


NETWORKS: dict[str, Counter[Layer]] = {
    "resnet18": Counter(resnet(64, (2, 2, 2, 2), bottleneck=False)),
    "vgg11": Counter(vgg11(64)),
    "resnet50": Counter(resnet(96, (3, 4, 6, 3), bottleneck=True)),
}


# The contenders: what a child process times ------------------------------------------------------------------------
def arrays(layer: Layer, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make a convolution's input x, weight w and gradient of the output dy, of random values."""
    rng = np.random.default_rng(0)
    size = (layer.size - 1) // layer.stride + 1
    shapes = ((batch, layer.channels, layer.size, layer.size),
              (layer.outputs, layer.channels, layer.kernel, layer.kernel), (batch, layer.outputs, size, size))
    x, w, dy = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return x, w, dy


def with_minidl(layer: Layer, batch: int) -> dict[str, Callable[[], object]]:
    """Return functions that run a convolution in minidl:
    forward, gradient of the input, gradient of the weight, by name."""
    from minidl.kernels.cpu import ALGORITHMS
    from minidl.meta import meta
    x, w, dy = arrays(layer, batch)

    def call(op: str, out: np.ndarray, *inputs: np.ndarray) -> Callable[[], object]:
        algorithm = ALGORITHMS[op][0]
        nbytes = algorithm.workspace([meta(a.shape) for a in inputs], [meta(out.shape)], layer.window())
        workspace = np.zeros(nbytes, np.uint8)
        return lambda: algorithm.run(out, *inputs, workspace=workspace, **layer.window())
    return {"conv2d": call("conv2d", np.zeros_like(dy), x, w),
            "conv2d_dgrad": call("conv2d_dgrad", np.zeros_like(x), dy, w),
            "conv2d_wgrad": call("conv2d_wgrad", np.zeros_like(w), dy, x)}


def with_torch(layer: Layer, batch: int) -> dict[str, Callable[[], object]]:
    """Return the same functions as ``with_minidl``, which run the convolution in PyTorch."""
    import torch
    x, w, dy = map(torch.from_numpy, arrays(layer, batch))
    window = layer.window()
    convolution: Callable[..., object] = torch.conv2d

    def gradient(*wanted: bool) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, window["stride"], window["padding"], (1, 1),
                                                           False, (0, 0), 1, [*wanted, False])
    return {"conv2d": lambda: convolution(x, w, **window), "conv2d_dgrad": gradient(True, False),
            "conv2d_wgrad": gradient(False, True)}


def contender(kind: str, batch: int, threads: int) -> None:
    """Read lines, each a layer and an operation, and answer each with the seconds of one call, until the input ends."""
    calls: dict[str, Callable[[], object]] = {}
    current, clock = None, time.thread_time if threads == 1 else time.perf_counter
    for line in sys.stdin:
        *numbers, op = line.split()
        layer = Layer(*map(int, numbers))
        if layer != current:
            calls, current = (with_minidl if kind == "minidl" else with_torch)(layer, batch), layer
        calls[op]()
        seconds: list[float] = []
        while len(seconds) < CALLS and sum(seconds) < SECONDS:
            start = clock()
            calls[op]()
            seconds.append(clock() - start)
        print(median(seconds), flush=True)


# The parent --------------------------------------------------------------------------------------------------------
class Child:
    """A process in which one of the two libraries runs convolutions and times them."""

    def __init__(self, kind: str, arguments: argparse.Namespace) -> None:
        threads = {name: str(arguments.threads) for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, "-m", "bench.cpu_kernels", "--contender", kind, "--batch", str(arguments.batch),
                   "--threads", str(arguments.threads)]
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **threads}, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def seconds(self, layer: Layer, op: str) -> float:
        """Return the seconds of one call of an operation (forward or a gradient) of a layer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(*layer, op, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def cell(torch: float, ratio: float) -> str:
    return f"{1e3 * torch:.2f} | {1e3 * torch / ratio:.2f} | {ratio:.2f}"


def table(name: str, children: dict[str, Child], rounds: int) -> Iterator[str]:
    """Yield the lines of one network's table."""
    yield f"\n### {name}\n"
    yield "| channels, size, outputs, window, stride | count |" + "".join(f" {op}: PyTorch, ms | minidl, ms | ratio |"
                                                                          for op in OPS)
    yield "|---|--:|" + "--:|" * 9
    torch_total, our_total = dict.fromkeys(OPS, 0.0), dict.fromkeys(OPS, 0.0)
    for layer, count in NETWORKS[name].items():
        cells = []
        for op in OPS:
            times = [(children["torch"].seconds(layer, op), children["minidl"].seconds(layer, op))
                     for _ in range(rounds)]
            torch, ratio = median(t for t, _ in times), median(t / m for t, m in times)
            torch_total[op] += count * torch
            our_total[op] += count * torch / ratio
            cells.append(cell(torch, ratio))
        yield f"| {', '.join(map(str, layer))} | {count} | {' | '.join(cells)} |"
    sums = [cell(torch_total[op], torch_total[op] / our_total[op]) for op in OPS]
    whole = sum(torch_total.values()) / sum(our_total.values())
    yield f"| **all: {whole:.2f}** | {sum(NETWORKS[name].values())} | {' | '.join(sums)} |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--contender", choices=("minidl", "torch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.contender:
        contender(arguments.contender, arguments.batch, arguments.threads)
        return
    children = {kind: Child(kind, arguments) for kind in ("torch", "minidl")}
    lines = [f"Batch {arguments.batch}, {arguments.threads} threads, float32, medians of "
                        f"{arguments.rounds} rounds. Ratio: PyTorch's time / minidl's."]
    print(lines[0])
    for name in arguments.networks.split(","):
        for line in table(name, children, arguments.rounds):
            print(line, flush=True)
            lines.append(line)
    for child in children.values():
        child.close()
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
