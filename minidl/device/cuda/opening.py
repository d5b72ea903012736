"""Open a GPU: find its profile by name, measure its link, load its kernels, and find the folder of timed plans."""

import re
from dataclasses import replace

from minidl.device import profiles
from minidl.device.cuda.device import CudaDevice
from minidl.device.cuda.seam import Properties, Vendor
from minidl.device.cuda.timed_plans import default_folder
from minidl.device.precision import Precision
from minidl.device.profiles import Profile
from minidl.errors import UserError
from minidl.meta import bfloat16
from minidl.outside.machine import free_memory
from minidl.outside.units import format_bytes

CONTEXT_BYTES = 512 * 2**20  # reserved for cuDNN and for modules that are loaded later
LINK_BYTES = 64 * 2**20
PAGE = 4096
RUNS = 5
BF16_CAPABILITY = (8, 0)
# For GPUs before Turing every version of cuDNN lists plans, but none after 9.10 (as the library writes it) runs them.
OLD_CAPABILITY, OLD_CUDNN = (7, 5), 91099
RELATIVES = {6: "p100", 7: "v100", 8: "a100"}  # profiles for other GPUs of a generation; newer ones: h100


def open_device(number: int | None, *, precision: Precision, cupti: bool = False, local_rank: int = 0) -> CudaDevice:
    """Return the GPU of this number; None: ``local_rank`` modulo the number of GPUs that this process sees.
    Raises DeviceError if it does not exist or cannot be used, UserError if it does not support the precision."""
    from minidl.device.cuda.real import Cuda, count_gpus
    from minidl.kernels.cuda import KERNELS

    if number is None:
        number = local_rank % max(1, count_gpus())
    vendor = Cuda(number)
    refuse_what_it_cannot(vendor.properties, precision)
    if cupti:
        vendor.recorder(vendor.stream()).close()  # raise now if CUPTI cannot record
    device = CudaDevice(f"cuda:{number}" if number else "cuda", profile_of(vendor, lockable_bytes()), vendor, KERNELS,
                        tf32=precision.tf32, cache=default_folder(), cupti=cupti)
    device.dlpack_device = (2, number)
    return device


def refuse_what_it_cannot(properties: Properties, precision: Precision) -> None:
    """Raise UserError for a precision or a cuDNN version that this GPU does not support.

    cuDNN has no bf16 convolutions before Ampere, and no version after 9.10 runs on GPUs before Turing.
    """
    if properties.capability < OLD_CAPABILITY and properties.cudnn > OLD_CUDNN:
        raise UserError(f"{properties.name} (compute capability {'.'.join(map(str, properties.capability))}) is not "
                        f"for cuDNN {properties.cudnn // 10000}.{properties.cudnn // 100 % 100}, only up to 9.10: pip "
                        "install 'minidl[cuda12-pascal]'")
    if precision.activations is bfloat16 and properties.capability < BF16_CAPABILITY:
        raise UserError(f"{properties.name} (compute capability {'.'.join(map(str, properties.capability))}) cannot "
                        f"compute in bf16, which needs {'.'.join(map(str, BF16_CAPABILITY))} or newer; use precision "
                        "fp32")


def profile_of(vendor: Vendor, host_bytes: int) -> Profile:
    """Return the profile of GPUs of this name, with the measured link and this machine's sizes of memory.

    Device memory is the free memory less CONTEXT_BYTES; host memory is ``host_bytes``. A GPU without a profile gets
    that of its generation. Durations are modelled by it until calls are timed.
    """
    properties = vendor.properties
    out, into, latency = measure_link(vendor)
    return replace(_relative(properties), name=properties.name, memory_bytes=properties.free_bytes - CONTEXT_BYTES,
                   title=f"{properties.name}, {format_bytes(properties.memory_bytes)}", host_memory_bytes=host_bytes,
                   link_out_bandwidth=out, link_in_bandwidth=into, link_latency_s=latency)


def _relative(properties: Properties) -> Profile:
    words = re.sub(r"[^a-z0-9]", "", properties.name.lower())
    named = [profile for key, profile in profiles.PROFILES.items() if key != "cpu" and key in words]
    return named[0] if named else profiles.get(RELATIVES.get(properties.capability[0], "h100"))


def measure_link(vendor: Vendor, nbytes: int = LINK_BYTES) -> tuple[float, float, float]:
    """Return (bytes per second out of the device, into it, seconds of the smallest copy), with page-locked memory.

    Medians of a few copies, one direction at a time.
    """
    stream, start, end = vendor.stream(), vendor.event(), vendor.event()
    device = vendor.allocate(nbytes)
    host = vendor.allocate_host(nbytes)

    def seconds(to: int, origin: int, size: int) -> float:
        runs = []
        for _ in range(RUNS):
            vendor.record(start, stream)
            vendor.copy(to, origin, size, stream)
            vendor.record(end, stream)
            vendor.synchronize(end)
            runs.append(vendor.elapsed(start, end))
        return sorted(runs)[RUNS // 2]
    try:
        latency = seconds(host, device, 4)
        return nbytes / seconds(host, device, nbytes), nbytes / seconds(device, host, nbytes), latency
    finally:
        vendor.free(device)
        vendor.free_host(host)


def lockable_bytes() -> int:
    """Return how many bytes may be page-locked: half of the free memory of this machine or container.
    Other programs cannot use page-locked memory. If the free memory is unknown, it is 16 GiB."""
    free = free_memory()
    return 16 * 2**30 if free is None else free // 2 // PAGE * PAGE
