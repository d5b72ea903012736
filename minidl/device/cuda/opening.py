"""Opening a GPU: its profile by name and by measuring its link, its kernels, and the folder of timed plans."""

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

CONTEXT_BYTES = 512 * 2**20  # what modules that are loaded later, and cuDNN, may still take
LINK_BYTES = 64 * 2**20
PAGE = 4096
RUNS = 5
BF16_CAPABILITY = (8, 0)
# Of GPUs before Turing cuDNN lists plans in any version, and runs them up to this one (9.10, as the library writes it).
OLD_CAPABILITY, OLD_CUDNN = (7, 5), 91099
RELATIVES = {6: "p100", 7: "v100", 8: "a100"}  # of GPUs without a profile, by generation; newer ones: h100


def open_device(name: str, number: int, *, precision: Precision, cupti: bool = False) -> CudaDevice:
    """The GPU of this number. Raises DeviceError."""
    from minidl.device.cuda.real import Cuda
    from minidl.kernels.cuda import KERNELS

    vendor = Cuda(number)
    refuse_what_it_cannot(vendor.properties, precision)
    if cupti:
        vendor.recorder(vendor.stream()).close()  # if it cannot, now is the time to say so
    device = CudaDevice(name, profile_of(vendor, lockable_bytes()), vendor, KERNELS, tf32=precision.tf32,
                        cache=default_folder(), cupti=cupti)
    device.dlpack_device = (2, number)
    return device


def refuse_what_it_cannot(properties: Properties, precision: Precision) -> None:
    """Raises UserError for bf16 on a GPU before Ampere, for which cuDNN has no such convolutions, and for one before
    Turing under a cuDNN that no longer runs there."""
    if properties.capability < OLD_CAPABILITY and properties.cudnn > OLD_CUDNN:
        raise UserError(f"{properties.name} (compute capability {'.'.join(map(str, properties.capability))}) is not "
                        f"for cuDNN {properties.cudnn // 10000}.{properties.cudnn // 100 % 100}, only up to 9.10: pip "
                        "install 'minidl[cuda12-pascal]'")
    if precision.activations is bfloat16 and properties.capability < BF16_CAPABILITY:
        raise UserError(f"{properties.name} (compute capability {'.'.join(map(str, properties.capability))}) cannot "
                        f"compute in bf16, which needs {'.'.join(map(str, BF16_CAPABILITY))} or newer; precision fp32 "
                        "does everywhere")


def profile_of(vendor: Vendor, host_bytes: int) -> Profile:
    """What is known of GPUs of its name, with the memory that is free now and the link as measured.

    Until a call was timed its duration is modelled: for a GPU without a profile, by one of its generation.
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
    """(bytes a second out of the device, into it, seconds of the least copy), from and to page-locked memory.

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
    """Half of what programs may still take of this machine's, or this container's, memory: page-locked memory is
    nobody else's any more."""
    free = free_memory()
    return 16 * 2**30 if free is None else free // 2 // PAGE * PAGE
