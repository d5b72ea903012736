"""Bytes a second of the kernels that memory should bound, beside those of a copy within the device.

Many launches in a row are timed by one pair of events, and queued while fills still keep the device busy: otherwise the
time of a short kernel would be the host's, between two launches. They take turns on so many copies of their operands
that the cache holds none from turn to turn.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from bench.gpu_check.link import bandwidths
from bench.gpu_check.setting import Record, Setting, Sizes
from bench.support.sass import ALLOWED, allowed, measured
from minidl.device.clock import COMPUTE
from minidl.device.cuda.device import CudaDevice
from minidl.meta import DTYPES, Meta, aligned

RUNS = 3
LAUNCHES = 20  # at most, between two events
FILLS = (32, 128)  # of ``Sizes.link_bytes``, before the launches that are timed: more if the device was not kept busy
CACHE_BYTES = 128 * 2**20  # more than twice the cache of an H100


def measure(setting: Setting, record: Record) -> None:
    """Record for each kernel its bytes a second and their share of a copy's; report each kernel that is too slow."""
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
                    each, pace = seconds(device, call.operation, call.metas, call.attrs, setting.sizes)
                    rate = call.moved * call.elements / each
                    wanted = 1 / allowed(device.vendor.properties.capability, call.name, dtype)  # of a copy's
                    record.put(f"{call.name} in {dtype}", {"rate": rate, "share": rate / copied, "wanted": wanted,
                                                                   "pace set by": pace},
                               f"{call.name} in {dtype}: {rate / 1e9:.0f} GB/s, {rate / copied:.0%} of a copy"
                               f"{', at the pace of the host' if pace == 'host' else ''}")


def seconds(device: CudaDevice, name: str, metas: Sequence[Meta], attrs: dict[str, Any],
            sizes: Sizes) -> tuple[float, str]:
    """Return the seconds of one call, the least of several runs; and which set the pace, "device" or "host"."""
    vendor, stream = device.vendor, device.streams.handles[COMPUTE]
    run, room = device.programs.kernel(name, metas, attrs), device.programs.kernel_workspace(name, metas, attrs)
    launches = min(LAUNCHES, sizes.calls)
    widths = [aligned(m.nbytes) for m in metas] + [aligned(max(room, 1))]
    copies = min(launches, -(-CACHE_BYTES // sum(widths)))
    base, filled = vendor.allocate(copies * sum(widths)), vendor.allocate(sizes.link_bytes)
    places = [[base + copy * sum(widths) + sum(widths[:k]) for k in range(len(widths))] for copy in range(copies)]
    start, end = vendor.event(), vendor.event()

    def timed(fills: int) -> tuple[float, bool]:
        """Return the seconds of a call, and whether the device was still busy when the host had queued all calls."""
        for _ in range(fills):
            vendor.fill(filled, 0, sizes.link_bytes, stream)
        vendor.record(start, stream)
        for *operands, workspace in islice(cycle(places), launches):
            run(operands, attrs, workspace)
        vendor.record(end, stream)
        ahead = not vendor.done(start)
        vendor.synchronize(end)
        return vendor.elapsed(start, end) / launches, ahead
    try:
        vendor.fill(base, 0, copies * sum(widths), stream)
        timed(0)  # compiles
        fills = next((count for count in FILLS if timed(count)[1]), FILLS[-1])
        found = [timed(fills) for _ in range(RUNS)]
        return min(found)[0], "device" if all(ahead for _, ahead in found) else "host"
    finally:
        vendor.free(filled)
        vendor.free(base)
