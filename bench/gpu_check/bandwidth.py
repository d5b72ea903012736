"""Bytes a second of the kernels that memory should bound, beside those of a copy within the device."""

from collections.abc import Sequence
from typing import Any

from bench.gpu_check.link import bandwidths
from bench.gpu_check.setting import Record, Setting
from bench.support.sass import ALLOWED, allowed, measured
from minidl.device.clock import COMPUTE
from minidl.device.cuda.device import CudaDevice
from minidl.meta import DTYPES, Meta, aligned

RUNS = 5


def measure(setting: Setting, record: Record) -> None:
    """For each kernel its bytes a second, and their share of a copy's. One that is slower than wanted is told of."""
    with setting.runtime(precision="fp32", memory_budget=1 << 26) as runtime:
        device = runtime.device
        if not isinstance(device, CudaDevice):
            record.leave_out(f"{device.name} runs no kernels of CUDA")
            return
        copied = bandwidths(device, setting.sizes.link_bytes)["within the device"]
        record.put("copy", copied, f"a copy within the device: {copied / 1e9:.0f} GB/s")
        for dtype in [d for d in ALLOWED if d in setting.sizes.dtypes]:
            for call in measured(DTYPES[dtype], images=setting.sizes.maps):
                with record.one(f"{call.name} in {dtype}"):
                    rate = call.moved * call.elements / seconds(device, call.operation, call.metas, call.attrs)
                    wanted = 1 / allowed(device.vendor.properties.capability, call.name, dtype)  # of a copy's
                    record.put(f"{call.name} in {dtype}", {"rate": rate, "share": rate / copied, "wanted": wanted},
                               f"{call.name} in {dtype}: {rate / 1e9:.0f} GB/s, {rate / copied:.0%} of a copy")


def seconds(device: CudaDevice, name: str, metas: Sequence[Meta], attrs: dict[str, Any]) -> float:
    """Of one call, as the least of several runs."""
    vendor, stream = device.vendor, device.streams.handles[COMPUTE]
    run, room = device.programs.kernel(name, metas, attrs), device.programs.kernel_workspace(name, metas, attrs)
    sizes = [aligned(m.nbytes) for m in metas]
    base, start, end = vendor.allocate(sum(sizes) + aligned(max(room, 1))), vendor.event(), vendor.event()
    places = [base + sum(sizes[:k]) for k in range(len(metas) + 1)]
    try:
        vendor.fill(base, 0, sum(sizes), stream)
        found = []
        for _ in range(RUNS + 1):  # the first one compiles
            vendor.record(start, stream)
            run(places[:-1], attrs, places[-1])
            vendor.record(end, stream)
            vendor.synchronize(end)
            found.append(vendor.elapsed(start, end))
        return min(found[1:])
    finally:
        vendor.free(base)
