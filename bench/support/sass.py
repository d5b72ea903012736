"""Machine instructions an element of CUDA kernels, counted without a GPU, beside what the memory allows.

It counts the instructions of the longest loop over the elements that a thread handles in one turn, or of the whole
kernel if there is no loop. So work that a thread does once does not count beside a loop. The disassembler is NVIDIA's
``nvdisasm`` (``pip install nvidia-cuda-nvdisasm``). Knows sources and cubins; no device.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.cuda_calls import channels_last
from minidl.kernels.cuda import KERNELS, elementwise, shape, steps
from minidl.kernels.cuda.fast import batchnorm_rows, column_groups, element_groups, pool_tiles, pool_windows
from minidl.kernels.cuda.launch import DeviceFunction
from minidl.meta import DTYPES, DType, Meta, Shape, meta, uint8, wide

LABEL, INSTRUCTION = re.compile(r"\s*(\.L_\S+):"), re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)[;}]")
BRANCH = re.compile(r"BRA.*`\((\.L_\S+)\)")
IMAGES = (256, 64, 56, 56)  # of ResNet-50 at 256
# (multiprocessors, their schedulers, clock in Hz, bytes a second) of a capability: P100, A100, H100 SXM.
GPUS = {(6, 0): (56, 2, 1.328e9, 732e9), (8, 0): (108, 4, 1.41e9, 1555e9), (9, 0): (132, 4, 1.755e9, 3.35e12)}
ISSUED = 0.6  # of the cycles a scheduler issues an instruction, in a loop that waits for memory: a guess
ALLOWED = {"float32": 1.3, "bfloat16": 1.5}  # of the time that memory takes
WINDOWS = ("avg_pool2d", "max_pool2d")
# What takes longer than that: on a P100 a 64-bit address is computed in pieces, as is the product of two integers, and
# these find several places for a few values each.
SLOW = {(6, 0): {"max_pool2d_grad": 1.5, "contiguous of heads": 1.4}}


def allowed(capability: tuple[int, int], operation: str, dtype: str) -> float:
    """Return the largest allowed ratio of a kernel's time to the time of its memory accesses."""
    return SLOW.get(capability, {}).get(operation, ALLOWED[dtype])


@dataclass(frozen=True)
class Count:
    """The count of one kernel: instructions and bytes an element, and the seconds that a GPU takes for either.

    It also has the registers of a thread, and the bytes of a thread's arrays that are not in registers.
    """

    operation: str
    kernel: str
    dtype: str
    instructions: float
    moved: float
    issue_s: float
    memory_s: float
    registers: int
    stack_bytes: int

    @property
    def ratio(self) -> float:
        """Return the kernel's time, by instructions or by memory, as a multiple of the time of its memory accesses."""
        return max(self.issue_s, self.memory_s) / self.memory_s


def disassembler() -> str | None:
    """Return the path of ``nvdisasm``; None if it is not installed."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    try:
        names = [Path(str(name.locate())) for name in files("nvidia-cuda-nvdisasm") or () if name.name == "nvdisasm"]
    except PackageNotFoundError:
        return None
    return str(names[0]) if names else None


def instructions(code: bytes, program: str) -> tuple[int, list[int]]:
    """Return the number of a cubin's instructions without padding, and the number in each of its loops."""
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


def elements(source: DeviceFunction) -> int:
    """Return how many elements a thread handles in one turn of its loop, or in all if it has no loop."""
    options, family = dict(source.options), source.make.__module__.rpartition(".")[2]
    width = int(options.get("width", 1))
    if "held" in options:  # of rows by a few lanes
        return width * int(options["held"])
    if source.make is pool_windows.windows_abreast:
        return pool_windows.HELD
    if source.make is pool_tiles.gradient_of_tiles:
        return width * int(np.prod([pool_tiles.tile_of(step) for step in options["stride"]]))
    if source.make is shape.transposed:
        return int(options["tile"]) ** 2 // source.threads
    each = {"batchnorm_rows": batchnorm_rows.ROWS, "pool_groups": 1, "pool": 1, "steps": steps.ITEMS,
            "column_sums": column_groups.ROWS, "parameter_column_sums": column_groups.ROWS // 2,
            "repeated_groups": element_groups.REPEATED, "element_groups": element_groups.GROUPS}
    return width * each.get(source.make.__name__, each.get(family, elementwise.ITEMS))


@dataclass(frozen=True)
class Measured:
    """A call whose kernel is counted, and the bytes that it moves for an element, of all operands.

    turns: how often a loop runs for all that a thread handles, where it is no loop over elements; the loop then counts
    beside the rest of the kernel. case: which of several calls of the operation this is.
    """

    operation: str
    metas: tuple[Meta, ...]
    attrs: dict[str, Any]
    moved: float
    turns: int = 0
    case: str = ""

    @property
    def name(self) -> str:
        """The name of the measured call, unique among all."""
        return self.operation + self.case

    @property
    def elements(self) -> int:
        """How many there are: of the largest operand, but where a window makes one of several, of the result."""
        return self.metas[0].size if self.operation in WINDOWS else max(m.size for m in self.metas)


def measured(dtype: DType, *, images: Shape = IMAGES, general: bool = False) -> list[Measured]:
    """Return calls on feature maps of ResNet-50 (or ``images``) and on rows of BERT.

    general: True places all operands so that they begin inside a group of 16 bytes; then the kernels for all layouts
    run.
    """
    beside, size, off = wide(dtype), dtype.itemsize, int(general)
    c = meta(images[1:2], beside)
    half = (*images[:2], images[2] // 2, images[3] // 2)

    def lying(m: Meta) -> Meta:
        return meta(m.shape, m.dtype, m.strides, off)
    x, h = (lying(channels_last(meta(s, dtype))) for s in (images, half))
    index, spread = lying(channels_last(meta(half, uint8))), lying(meta((*images[:2], 1, 1), dtype))
    n, channels = images[:2]
    long, vectors = (n * 8, 12 * channels), (n * 8,)
    rows, scores = (lying(meta(shape, dtype)) for shape in (long, (96 * n, 2 * channels)))
    heads = meta((-(-n // 16), 12, 2 * channels, channels), dtype, (24 * channels**2, channels, 12 * channels, 1), off)
    vector, each, p = meta(long[1:], beside), meta(vectors, beside), meta((n * channels * 64,), beside, None, off)
    training: dict[str, Any] = {"eps": 1e-5, "training": True}
    eps: dict[str, Any] = {"eps": 1e-5}
    small: dict[str, Any] = {"stride": (2, 2), "kernel": (2, 2), "padding": (0, 0)}
    large: dict[str, Any] = {"stride": (2, 2), "kernel": (3, 3), "padding": (1, 1)}

    def call(name: str, *metas: Meta, moved: float, turns: int = 0, case: str = "", **attrs: Any) -> Measured:
        return Measured(name, metas, attrs, moved, turns, case)
    state = p.dtype.itemsize
    return [
        call("batch_norm_stats", c, c, x, moved=size),
        call("batch_norm", x, x, c, c, c, c, moved=2 * size, **training),
        call("batch_norm_add_relu", x, x, x, c, c, c, c, moved=3 * size, **training),
        call("batch_norm_grad_reduce", c, c, x, x, c, c, moved=2 * size, **eps),
        call("batch_norm_relu_grad_reduce", c, c, x, x, c, c, c, c, moved=2 * size, **eps),
        call("batch_norm_grad", x, x, x, c, c, c, c, c, moved=3 * size, **training),
        call("batch_norm_relu_grad", x, x, x, c, c, c, c, c, c, moved=3 * size, **training),
        call("relu", x, x, moved=2 * size), call("relu_grad", x, x, x, moved=3 * size),
        call("add", x, x, x, moved=3 * size), call("add", rows, rows, vector, moved=2 * size, case=" to rows"),
        call("contiguous", x, x, moved=2 * size),
        call("contiguous", meta(heads.shape, dtype), heads, moved=2 * size, case=" of heads"),
        call("contiguous", meta(images, dtype), x, moved=2 * size, case=" of maps, channels first"),
        call("dropout", rows, rows, moved=2 * size, p=0.1, seed=1),
        call("softmax", scores, scores, moved=2 * size), call("softmax_grad", scores, scores, scores, moved=3 * size),
        call("layer_norm", rows, each, each, rows, vector, vector, moved=2 * size, **eps),
        call("layer_norm_grad", rows, rows, rows, vector, each, each, moved=3 * size),
        call("layer_norm_grad_reduce", vector, vector, rows, rows, each, each, moved=2 * size),
        call("bias_grad", vector, rows, moved=size, axis=1),
        call("adaptive_avg_pool2d", spread, x, moved=size, size=(1, 1)),
        call("adaptive_avg_pool2d_grad", x, spread, moved=size, x_shape=x.shape),
        call("avg_pool2d", h, x, moved=5 * size, turns=1, **small),
        call("avg_pool2d_grad", x, h, moved=1.25 * size, turns=1, x_shape=x.shape, **small),
        call("max_pool2d", h, index, x, moved=5 * size + 1, turns=3, **large),
        call("max_pool2d_grad", x, h, index, moved=1.25 * size + 0.25, turns=2, x_shape=x.shape, **large),
        call("sgd_", p, p, moved=3 * state, turns=8, lr=0.1, weight_decay=0.0),
        call("sgd_momentum_", p, p, p, moved=5 * state, turns=8, lr=0.1, momentum=0.9, weight_decay=0.0),
        call("adam_", p, p, p, p, moved=7 * state, turns=8, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8,
             step=1, weight_decay=0.0, decoupled=False),
    ]


def counts(capability: tuple[int, int], dtype: str, program: str, *, general: bool = False,
           names: Collection[str] = ()) -> Iterator[Count]:
    """Yield the count of each call's first kernel, which is the one that handles the elements.

    names: only these operations, if any are named. general: as in ``measured``.
    """
    from minidl.kernels.cuda.compile import Compiler

    compiler, kind = Compiler(capability), DTYPES[dtype]
    processors, schedulers, clock, bandwidth = GPUS[capability]
    for call in measured(kind, general=general):
        if names and call.operation not in names:
            continue
        plan = KERNELS[call.operation].prepare(call.metas, call.attrs)
        source = plan.sources[0]
        cubin = compiler.cubin(source)
        every, loops = instructions(cubin.code, program)
        longest = max(loops, default=every)
        turns = call.turns or int(dict(source.options).get("held", 0))  # none is of a loop over elements
        each = (every + (turns - 1) * longest * bool(loops) if turns else longest) / elements(source)
        if call.operation == "contiguous":  # which moves words: by as many bytes as they have
            options = dict(source.options)
            word = options["dtype"] if "dtype" in options else options["dtypes"][0]
            each *= kind.itemsize / np.dtype(word).itemsize
        yield Count(call.name, source.make.__name__, dtype, each, call.moved,
                    each / (processors * schedulers * 32 * clock * ISSUED), call.moved / bandwidth,
                    cubin.registers, cubin.stack_bytes)
