"""The CUDA device. Nothing of CUDA is imported before ``create`` has found that it is there."""

from minidl.device.contract import Device
from minidl.device.cuda import missing
from minidl.device.precision import Precision
from minidl.errors import UserError


def create(name: str, *, precision: Precision, cupti: bool = False) -> Device:
    """The GPU of a name: "cuda", or "cuda:<number>". Raises UserError, one line, if anything that it needs is missing.

    precision: whether products and convolutions of fp32 tensors may round their factors to 10 bits, as tensor cores do,
    or must be exact. Tensors of bf16 have their own products whatever this says, if the GPU has any.
    cupti: as of ``CudaDevice``.
    """
    number = name.removeprefix("cuda").removeprefix(":") or "0"
    if not number.isdecimal():
        raise UserError(f"unknown device {name!r}: cuda, or cuda:<number> with the number of a GPU")
    message = missing.message() or (missing.cupti_message() if cupti else None)
    if message is not None:
        raise UserError(message)
    from minidl.device.cuda.opening import open_device

    return open_device(name, int(number), precision=precision, cupti=cupti)
