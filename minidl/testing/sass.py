"""Machine instructions an element of CUDA kernels, counted without a GPU, beside what the memory allows.

Counted are the instructions of the longest loop over the elements that a thread handles in one turn of it, or of the
whole kernel where it has no loop; so what a thread does once is not, where it has a loop. The disassembler is NVIDIA's
``nvdisasm`` (``pip install nvidia-cuda-nvdisasm``). Knows sources and cubins; no device.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np

from minidl.kernels.cuda import KERNELS, batchnorm_rows, elementwise, sums
from minidl.kernels.cuda.launch import Source
from minidl.meta import DTYPES, DType, Meta, Shape, meta, wide
from minidl.testing.cuda_calls import channels_last

LABEL, INSTRUCTION = re.compile(r"\s*(\.L_\S+):"), re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);")
BRANCH = re.compile(r"BRA.*`\((\.L_\S+)\)")
IMAGES = (256, 64, 56, 56)  # of ResNet-50 at 256
# (multiprocessors, their schedulers, clock in Hz, bytes a second) of a capability: P100, A100, H100 SXM.
GPUS = {(6, 0): (56, 2, 1.328e9, 732e9), (8, 0): (108, 4, 1.41e9, 1555e9), (9, 0): (132, 4, 1.755e9, 3.35e12)}
ISSUED = 0.6  # of the cycles a scheduler issues an instruction, in a loop that waits for memory: a guess
ALLOWED = {"float32": 1.3, "bfloat16": 1.5}  # of the time that memory takes


@dataclass(frozen=True)
class Count:
    """One kernel: instructions and bytes an element, and seconds an element of either on a GPU."""

    operation: str
    kernel: str
    dtype: str
    instructions: float
    moved: float
    issue_s: float
    memory_s: float

    @property
    def ratio(self) -> float:
        """How much longer than memory needs it takes, whichever is slower."""
        return max(self.issue_s, self.memory_s) / self.memory_s


def disassembler() -> str | None:
    """Where ``nvdisasm`` is; None if it is not installed."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    try:
        names = [Path(str(name.locate())) for name in files("nvidia-cuda-nvdisasm") or () if name.name == "nvdisasm"]
    except PackageNotFoundError:
        return None
    return str(names[0]) if names else None


def instructions(code: bytes, program: str) -> tuple[int, list[int]]:
    """Instructions of a cubin without what fills it up, and those of each loop."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True).stdout
    count, labels, loops = 0, {}, []
    for line in text.splitlines():
        label, found = LABEL.match(line), INSTRUCTION.match(line)
        if label:
            labels[label[1]] = count
        elif found and not found[1].startswith("NOP"):
            branch = BRANCH.search(found[1])
            count += 1
            if branch and branch[1] in labels and count - labels[branch[1]] > 1:  # else it is the end's, to itself
                loops.append(count - labels[branch[1]])
    return count, loops


def elements(source: Source) -> int:
    """How many a thread handles in a turn of its loop, or at all."""
    options = dict(source.options)
    if source.make.__module__ == batchnorm_rows.__name__:
        return batchnorm_rows.ROWS * int(options["width"])
    if source.make is elementwise.dense_groups:
        return elementwise.GROUPS * int(options["width"])
    return elementwise.ITEMS if source.make is elementwise.dense else sums.ITEMS


def measured(dtype: DType, *, images: Shape = IMAGES,
             general: bool = False) -> dict[str, tuple[list[Meta], dict[str, Any], int]]:
    """Calls on ResNet-50's maps (or ``images``), and how many maps each reads or writes. ``general``: the maps begin
    within a group of 16 bytes, so that they go the way of all layouts."""
    x, c = channels_last(meta(images, dtype)), meta(images[1:2], wide(dtype))
    x = meta(x.shape, dtype, x.strides, int(general))
    training, eps = {"eps": 1e-5, "training": True}, {"eps": 1e-5}
    return {"batch_norm_stats": ([c, c, x], {}, 1), "batch_norm": ([x, x, c, c, c, c], training, 2),
            "batch_norm_add_relu": ([x, x, x, c, c, c, c], training, 3),
            "batch_norm_grad_reduce": ([c, c, x, x, c, c], eps, 2),
            "batch_norm_relu_grad_reduce": ([c, c, x, x, c, c, c, c], eps, 2),
            "batch_norm_grad": ([x, x, x, c, c, c, c, c], training, 3),
            "batch_norm_relu_grad": ([x, x, x, c, c, c, c, c, c], training, 3),
            "relu": ([x, x], {}, 2), "relu_grad": ([x, x, x], {}, 3), "add": ([x, x, x], {}, 3),
            "contiguous": ([x, x], {}, 2)}


def counts(capability: tuple[int, int], dtype: str, program: str, *, general: bool = False) -> Iterator[Count]:
    """Of each call's first kernel, which is the one that sees the maps."""
    from minidl.kernels.cuda.compile import Compiler

    compiler, kind = Compiler(capability), DTYPES[dtype]
    processors, schedulers, clock, bandwidth = GPUS[capability]
    for name, (metas, attrs, maps) in measured(kind, general=general).items():
        source = KERNELS[name].plan(metas, attrs).sources[0]
        every, loops = instructions(compiler.cubin(source).code, program)
        each = max(loops, default=every) / elements(source)
        if name == "contiguous":  # which moves words: by as many bytes as they have
            each *= kind.itemsize / np.dtype(dict(source.options)["dtypes"][0]).itemsize
        yield Count(name, source.make.__name__, dtype, each, maps * kind.itemsize,
                    each / (processors * schedulers * 32 * clock * ISSUED), maps * kind.itemsize / bandwidth)
