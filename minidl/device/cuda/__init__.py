"""The CUDA device. Nothing of CUDA is imported before ``create`` has found that it is there."""

from minidl.device.cuda import missing
from minidl.device.device import Device
from minidl.errors import UserError

PRECISIONS = ("fp32", "tf32", "bf16")


def create(name: str, *, precision: str = "tf32") -> Device:
    """The GPU of a name: "cuda", or "cuda:<number>". Raises UserError, one line, if anything that it needs is missing.

    precision: of products and convolutions of fp32 tensors. "fp32" is exact; "tf32" lets tensor cores round their
    factors to 10 bits. Tensors of bf16 have their own products whatever this says, so "bf16" is as "fp32" here.
    """
    if precision not in PRECISIONS:
        raise UserError(f"no precision {precision!r}; known: {', '.join(PRECISIONS)}")
    number = name.removeprefix("cuda").removeprefix(":") or "0"
    if not number.isdecimal():
        raise UserError(f"unknown device {name!r}: cuda, or cuda:<number> with the number of a GPU")
    message = missing.message()
    if message is not None:
        raise UserError(message)
    from minidl.device.cuda.opening import open_device

    return open_device(name, int(number), tf32=precision == "tf32")
