"""Programs: functions that issue the work of one call, prepared once for kernels, products and convolutions.

A program takes the addresses of the operands' blocks (outputs first, then inputs), the attributes and the workspace,
and issues work to one stream. Everything that follows from shapes is computed when the program is made: once
for each algorithm of each signature, while it is run thousands of times.

Knows kernels by the names of operations, and the seam; no arena, no events.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minidl.device.cuda import attention, convolution, products
from minidl.device.cuda.convolution import ConvolutionSteps
from minidl.device.cuda.memory_format import channels_last
from minidl.device.cuda.seam import Handle, Vendor
from minidl.device.cuda.staging import Staging
from minidl.kernels.cuda.launch import DeviceFunction, Kernel, Launch, Number, Pointer
from minidl.kernels.empty import SUMS
from minidl.meta import Meta, aligned, int64, meta

Program = Callable[[Sequence[int], dict[str, Any], int], None]  # (blocks, attributes, workspace)
UPLOADS = ("upload", "upload_")


def do_nothing(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
    """Do nothing: the program of an operation without a launch."""


class KernelStream:
    """A stream in the form that kernels use (``kernels.cuda.launch.Launcher``); uploads are on the compute stream."""

    def __init__(self, vendor: Vendor, handle: Handle, staging: Staging) -> None:
        self.vendor = vendor
        self.handle = handle
        self.staging = staging
        self.upload = staging.upload

    def launch(self, source: DeviceFunction, blocks: int, arguments: Sequence[int | np.generic]) -> None:
        """Launch a kernel on this stream. blocks: the number of thread blocks. arguments: addresses and numbers."""
        self.vendor.launch(source, blocks, arguments, self.handle)


class Programs:
    """A maker of programs for one stream of a device. ``kernels`` is the table of CUDA kernels, by operation.
    tf32: True if products of fp32 tensors may round their factors to TF32."""

    def __init__(self, stream: KernelStream, kernels: Mapping[str, Kernel], *, tf32: bool) -> None:
        self.stream = stream
        self.kernels = kernels
        self.tf32 = tf32

    def on(self, handle: Handle) -> "Programs":
        """Return a maker of the same programs for another stream."""
        return Programs(KernelStream(self.stream.vendor, handle, self.stream.staging), self.kernels, tf32=self.tf32)

    # Kernels -------------------------------------------------------------------------------------------------
    def kernel(self, op_name: str, metas: Sequence[Meta], attrs: dict[str, Any]) -> Program:
        """Return a program that runs an operation's kernel on operands (outputs, then inputs) of these descriptions."""
        kernel, stream = self.kernels[op_name], self.stream
        if type(kernel).issue is not Kernel.issue:  # it does more than launch
            return partial(_issue, kernel, stream, tuple(metas))
        prepared = kernel.prepare(metas, attrs)
        launches = [_template(launch) for launch in prepared.launches]
        give, handle, constant = stream.vendor.launch, stream.handle, prepared.constant
        if constant and len(launches) == 1:
            return _single(launches[0], give, handle)

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            places = (*blocks, workspace)  # operand -1 is the workspace
            values = {} if constant else kernel.numbers(attrs)
            for source, count, template, pointers, numbers in launches:
                arguments = template.copy()
                for index, operand, offset in pointers:
                    arguments[index] = places[operand] + offset
                for index, kind, name in numbers:
                    arguments[index] = kind(values[name])
                give(source, count, arguments, handle)
        return program

    def of_empty(self, op_name: str, outputs: Sequence[Meta]) -> Program | None:
        """Return a program for a call on empty tensors, which fills sums with zeros; None if it needs a kernel."""
        if not any(m.size for m in outputs):
            return do_nothing
        if op_name not in SUMS:
            return None
        fills = [self.kernel("full", (m,), {"value": 0.0}) if m.size else do_nothing for m in outputs]

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            for fill, block in zip(fills, blocks, strict=False):  # outputs come first
                fill((block,), {"value": 0.0}, workspace)
        return program

    def kernel_workspace(self, op_name: str, metas: Sequence[Meta], attrs: dict[str, Any]) -> int:
        """Return the workspace bytes of a kernel, enough for all values of attributes that change between calls."""
        if op_name in UPLOADS:  # their signature does not tell if there are values to upload
            attrs = {**attrs, "data": ()}
        return self.kernels[op_name].workspace(metas, attrs)

    # cuBLAS --------------------------------------------------------------------------------------------------
    def product(self, op_name: str, inputs: Sequence[Meta], output: Meta, attrs: dict[str, Any]) -> tuple[Program, int]:
        """Return a program for a matrix product, and the workspace bytes for factors that must be copied first."""
        plan = products.plan(op_name, inputs, output, attrs, tf32=self.tf32)
        vendor, handle = self.stream.vendor, self.stream.handle
        itemsize = output.dtype.itemsize
        calls = [(gemm, c * itemsize, a * itemsize, b * itemsize) for gemm, c, a, b in plan.calls]
        copies, scratch = [], 0
        for index in plan.copied:
            dense = meta(inputs[index].shape, inputs[index].dtype)
            copies.append((index, scratch, self.kernel("contiguous", (dense, inputs[index]), {})))
            scratch += aligned(dense.nbytes)
        offsets = [0 if i in plan.copied else m.offset * itemsize for i, m in enumerate(inputs[:2])]
        add = self.kernel("add", (output, output, inputs[2]), {}) if plan.bias else None

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            factors = [blocks[1], blocks[2]]
            for index, at, copy in copies:
                copy((workspace + at, factors[index]), {}, 0)
                factors[index] = workspace + at
            c, first, second = blocks[0], factors[0] + offsets[0], factors[1] + offsets[1]
            for gemm, to, of_second, of_first in calls:
                vendor.gemm(gemm, c + to, second + of_second, first + of_first, handle)
            if add is not None:
                add((c, c, blocks[3]), {}, 0)
        return program, scratch

    # cuDNN ---------------------------------------------------------------------------------------------------
    def convolution(self, steps: ConvolutionSteps, plan: str, inputs: Sequence[Meta], output: Meta) -> Program:
        """Return a program that runs a convolution, or a gradient of one, by a plan of cuDNN."""
        vendor, handle = self.stream.vendor, self.stream.handle
        operands = (output, *inputs)
        copied = [self.kernel("contiguous", (lies, operands[i]), {}) for i, _, lies in steps.copied]
        # A copied operand starts at the beginning of its copy; any other at its own offset.
        moved = {i for i, _, _ in steps.copied}
        offsets = [0 if i in moved else m.offset * m.dtype.itemsize for i, m in enumerate(operands)]
        finish = self._finisher(steps, operands)

        if not steps.copied and steps.parts == 1 and steps.result is None:
            return self._plain_convolution(steps, plan, offsets, finish)

        def convolve(c: Any, name: str, x: int, w: int, y: int, workspace: int) -> None:
            vendor.convolve(c, name, x, w, y, workspace, handle)

        def run(kernel: Program) -> Callable[[Sequence[int]], None]:
            return lambda blocks: kernel(blocks, {}, 0)
        copies, last = [run(kernel) for kernel in copied], None if finish is None else run(finish)

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            convolution.issue(steps, plan, [b + o for b, o in zip(blocks, offsets, strict=True)], workspace,
                              convolve=convolve, copies=copies, finish=last)
        return program

    def _plain_convolution(self, steps: ConvolutionSteps, plan: str, offsets: Sequence[int],
                           finish: Program | None) -> Program:
        """Return a shorter program for a convolution that needs no copies, no parts and no intermediate result."""
        convolve, handle, described = self.stream.vendor.convolve, self.stream.handle, steps.convolution
        (x, w, y), bias = steps.roles, steps.bias
        at_x, at_w, at_y = (offsets[i] for i in steps.roles)

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            convolve(described, plan, blocks[x] + at_x, blocks[w] + at_w, blocks[y] + at_y, workspace, handle)
            if finish is not None:
                to = blocks[0]
                finish((to, to) if bias is None else (to, to, blocks[bias] + offsets[bias]), {}, 0)
        return program

    def attention(self, steps: attention.AttentionSteps, plan: str, operands: Sequence[Meta]) -> Program:
        """Return a program for attention or its gradients by a plan of cuDNN; ``operands``: outputs, then inputs."""
        vendor, handle = self.stream.vendor, self.stream.handle
        moved = {i for i, _, _ in steps.copied}
        offsets = [0 if i in moved else m.offset * m.dtype.itemsize for i, m in enumerate(operands)]
        copies = [self.kernel("contiguous", (dense, operands[i]), {}) for i, _, dense in steps.copied]
        numbers = self.kernel("fill_", (meta((2,), int64),), {"value": 0}) if steps.seed is not None else None

        def attend(addresses: Sequence[int], seed: int, workspace: int) -> None:
            vendor.attend(steps.attention, plan, addresses, seed, workspace, handle)

        def fill(address: int, value: int) -> None:
            assert numbers is not None
            numbers((address,), {"value": value}, 0)

        def run(kernel: Program) -> Callable[[Sequence[int]], None]:
            return lambda blocks: kernel(blocks, {}, 0)
        runs = [run(copy) for copy in copies]

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            seed = attrs["seed"] + attrs.get("first", 0)  # cuDNN's random numbers cannot start at a given position
            attention.issue(steps, [b + o for b, o in zip(blocks, offsets, strict=True)], seed, workspace,
                            attend=attend, copies=runs, fill=fill)
        return program

    def _finisher(self, steps: ConvolutionSteps, operands: Sequence[Meta]) -> Program | None:
        """Return the kernel after a product, or None: it adds a bias, a gradient or another part, or is a ReLU."""
        output = operands[0]
        if steps.bias is not None:
            bias = operands[steps.bias]
            name = "add_relu" if steps.relu else "add"
            return self.kernel(name, (output, output, meta((bias.shape[0], 1, 1), bias.dtype)), {})
        if steps.relu:
            return self.kernel("relu", (output, output), {})
        if steps.onto is not None:
            onto = next((m for i, _, m in steps.copied if i == steps.onto), operands[steps.onto])
            shape = steps.convolution.x
            result = channels_last(meta(shape, output.dtype))
            return self.kernel("add", (result, result, meta(shape, onto.dtype) if onto.contiguous else result), {})
        if steps.result is not None:
            return self.kernel("add", (output, output, output), {})
        return None


def _issue(kernel: Kernel, stream: KernelStream, metas: tuple[Meta, ...], blocks: Sequence[int],
           attrs: dict[str, Any], workspace: int) -> None:
    kernel.issue(stream, blocks, metas, attrs, workspace)


def _single(template: "Template", give: Callable[..., None], handle: Handle) -> Program:
    """Return the program of the most common call: one launch in which only addresses change.
    Leading operands that start at their block's address are taken from ``blocks`` as a slice."""
    source, count, arguments, pointers, _ = template
    whole = next((i for i, (index, operand, offset) in enumerate(pointers) if (index, operand, offset) != (i, i, 0)),
                 len(pointers))
    rest, moved = arguments[whole:], [(index - whole, operand, offset) for index, operand, offset in pointers[whole:]]

    def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
        if moved:
            places = (*blocks, workspace)  # operand -1 is the workspace
            for index, operand, offset in moved:
                rest[index] = places[operand] + offset
        give(source, count, (*blocks[:whole], *rest), handle)
    return program


Template = tuple[DeviceFunction, int, list[Any], list[tuple[int, int, int]], list[tuple[int, type[np.generic], str]]]


def _template(launch: Launch) -> Template:
    """Return a launch with the indices of its changing arguments.

    The template lists pointers, as (argument, operand, offset), and numbers, as (argument, type, name).
    """
    pointers = [(i, a.operand, a.offset) for i, a in enumerate(launch.arguments) if isinstance(a, Pointer)]
    numbers = [(i, np.dtype(a.kind).type, a.name) for i, a in enumerate(launch.arguments) if isinstance(a, Number)]
    return launch.source, launch.blocks, list(launch.arguments), pointers, numbers
