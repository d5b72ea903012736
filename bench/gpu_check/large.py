"""Sizes beyond 32 bits: an elementwise operation and a convolution on more than 2^31 elements.

The check compares the beginning, the middle beyond 2^31, and the end. It is left out if the GPU has too little memory.
"""

import numpy as np

from bench.gpu_check.setting import RESERVE_BYTES, Record, Setting
from bench.support.kernel_cases import OPS
from minidl import Runtime, no_grad, ops
from minidl.dispatch import apply_all
from minidl.meta import bfloat16
from minidl.outside.units import format_bytes

CHANNELS = 64


def measure(setting: Setting, record: Record) -> None:
    """Record how many elements are wrong, for each of the two operations."""
    images, side = setting.sizes.large
    nbytes = 2 * images * CHANNELS * side * side
    # Two maps of bf16; the convolution's plan may want some workspace beside them.
    need = 2 * nbytes + 2 * 2**30 * (nbytes > 2**30) + RESERVE_BYTES
    with setting.open("bf16") as device:
        have = device.profile.memory_bytes
    if have < need:
        record.leave_out(f"more than 2^31 elements need {format_bytes(need)}, and {format_bytes(have)} are free")
        return
    with setting.runtime(precision="bf16", memory_budget=need) as runtime, no_grad():
        for name in ("add", "conv2d"):
            with record.one(name):
                wrong = _wrong(runtime, name, images, side)
                elements = images * CHANNELS * side * side
                record.put(f"{name} of {elements} elements", wrong,
                           f"{name} of {elements} elements: {wrong} of those looked at are wrong")
                if wrong:
                    record.fail(f"{name} of {elements} elements: {wrong} of those looked at are wrong")


def _wrong(runtime: Runtime, name: str, images: int, side: int) -> int:
    """Run an operation on ``images`` images; return how many elements of the first, middle and last image are wrong."""
    with runtime.iteration():
        x = runtime.tensor(None, shape=(images, CHANNELS, side, side), dtype=bfloat16)
        apply_all(OPS["fill_"], x, value=1.0)
        if name == "add":
            y, right = x + x, 2.0
        else:
            w = runtime.tensor(np.ones((CHANNELS, CHANNELS, 1, 1), np.float32).astype("bfloat16"), dtype=bfloat16)
            (y,) = apply_all(OPS["conv2d"], x, w, stride=(1, 1), padding=(0, 0))
            right = float(CHANNELS)
        wrong = 0
        for image in sorted({0, images // 2, images - 1}):
            part = ops.between(y, 0, image, image + 1).numpy()
            wrong += int((part.astype(np.float32) != right).sum())
        return wrong
