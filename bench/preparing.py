"""Seconds that a GPU's first training takes before anything runs: machine code, and the lists of convolution plans.

    python -m bench.preparing [sm_80 sm_90] > bench/results/preparing.md

One process compiles the kernels of a training step of ResNet-50 in fp32 and in bf16, one after the other, into a new
folder, and then finds them there again. It lists the plans of the convolutions on an H200. Seconds are processor
seconds. Needs an extra (cuda12, cuda13), and neither a GPU nor a driver: a stub of a driver, whose calls all fail,
gives the same lists.
"""

import argparse
import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

from bench.cudnn_plans import PROPERTIES, with_a_driver
from bench.support.convolutions import TARGETS, convolutions
from bench.support.cuda_calls import capability_of
from bench.support.null_cuda import NullCuda
from minidl import Runtime
from minidl.device import profiles
from minidl.device.cuda.device import CudaDevice
from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.compile import Compiler
from minidl.kernels.cuda.launch import DeviceFunction
from minidl.lab.training_step import training_step

MODEL, BATCH, GPU = "resnet50", 256, "h200"
PRECISIONS = ("fp32", "bf16")
TITLE = f"""\
# Before the first training

By `python -m bench.preparing`: seconds of one process, for a training step of {MODEL} at {BATCH}. All of it is done
once and kept on disk; a GPU's check compiles in as many processes as there are cores.

| what | of | how many | longest (s) | each (s) | all (s) | again, all (s) |
|---|---|--:|--:|--:|--:|--:|"""


class Noting(NullCuda):
    """A vendor that does nothing but keep a list of the kernels that it is asked to launch."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[DeviceFunction, None] = {}

    def launch(self, source: DeviceFunction, *arguments: Any) -> None:
        """Add the kernel to the list."""
        self.sources[source] = None


def sources(precision: str) -> list[DeviceFunction]:
    """Return the sources of the step's kernels, each once."""
    vendor = Noting()
    device = CudaDevice("cuda", profiles.get(GPU), vendor, KERNELS)
    device.has_values = False  # inputs are made by shape alone
    with Runtime(device, policy="none", host_memory=0, precision=precision) as runtime:
        step = training_step(MODEL, BATCH)
        with runtime.iteration():
            step()
    return list(vendor.sources)


def row(what: str, of: str, seconds: Sequence[float], again: Sequence[float]) -> str:
    """Return a line of the table."""
    return (f"| {what} | {of} | {len(seconds)} | {max(seconds):.2f} | {sum(seconds) / len(seconds):.3f} | "
            f"{sum(seconds):.1f} | {sum(again):.2f} |")


def compiling(architecture: str, precision: str) -> str:
    """Compile all kernels of the step, then load them from disk; return the line of the table."""
    wanted = sources(precision)
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(capability_of(architecture), Path(folder))
        first, again = ([timed(compiler.cubin, source) for source in wanted] for _ in range(2))
        return row("kernels", f"{architecture} in {precision}", first, again)


def listing() -> str:
    """List the plans of each convolution, in float32 with TF32 and in bfloat16; return the line of the table."""
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    from minidl.device.cuda.cudnn_graphs import CudnnGraphs

    graphs = CudnnGraphs((PROPERTIES / f"{GPU}.json").read_text(encoding="utf-8"))
    wanted = convolutions(MODEL, BATCH, TARGETS[GPU])
    first, again = ([timed(graphs.plans, c) for c in wanted] for _ in range(2))
    return row("lists of plans", f"{GPU}, cuDNN {graphs.version}", first, again)


def timed(function: Any, argument: Any) -> float:
    """The seconds of one call."""
    start = process_time()
    function(argument)
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", default=["sm_80", "sm_90"])
    args = parser.parse_args()

    def run() -> None:
        print(TITLE, flush=True)
        for architecture in args.architectures:
            for precision in PRECISIONS:
                print(compiling(architecture, precision), flush=True)
        print(listing(), flush=True)
    with_a_driver(run, "bench.preparing")


if __name__ == "__main__":
    main()
