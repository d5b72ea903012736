"""The CUDA device. ``create`` checks that CUDA is present before it imports anything of CUDA."""

from minidl.device.contract import Device
from minidl.device.cuda import missing
from minidl.device.precision import Precision
from minidl.errors import UserError


def create(name: str, *, precision: Precision, cupti: bool = False, local_rank: int = 0) -> Device:
    """Return the GPU named "cuda" or "cuda:<number>". Raises UserError if a driver or package that it needs is missing,
    or if it does not support ``precision``; DeviceError if there is no GPU of this number, or it cannot be used.
    precision: decides whether products and convolutions of fp32 tensors may use TF32 or must be exact. It does not
    affect products of bf16 tensors.
    cupti: True to time each kernel of a measured iteration with CUPTI, instead of the gaps between events.
    local_rank: the number of the GPU that "cuda" means, modulo the number of GPUs that this process sees."""
    number = name.removeprefix("cuda").removeprefix(":")
    if number and not number.isdecimal():
        raise UserError(f"unknown device {name!r}: cuda, or cuda:<number> with the number of a GPU")
    message = missing.message() or (missing.cupti_message() if cupti else None)
    if message is not None:
        raise UserError(message)
    from minidl.device.cuda.opening import open_device

    return open_device(int(number) if number else None, precision=precision, cupti=cupti, local_rank=local_rank)
