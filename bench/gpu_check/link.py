"""Bandwidths between page-locked memory and the device, one way and both ways at once, and within the device.

For a device without a driver they are those of its profile: nominal, or measured when the device was opened.
"""

from statistics import median

from bench.gpu_check.setting import Record, Setting
from minidl.device.cuda.device import CudaDevice
from minidl.device.profiles import Profile

RUNS = 5
SMALL = 4096  # bytes of a copy that shows the latency


def measure(setting: Setting, record: Record) -> None:
    """Record bytes a second by direction (within the device:
    bytes read plus bytes written), and seconds of a small copy."""
    with setting.open() as device:
        found = (bandwidths(device, setting.sizes.link_bytes) if isinstance(device, CudaDevice)
                 else nominal(device.profile))
        for name, rate in found.items():
            words = f"{1e6 * rate:.1f} microseconds" if name == "latency" else f"{rate / 1e9:.1f} GB/s"
            record.put(name, rate, f"{name}: {words}")


def nominal(profile: Profile) -> dict[str, float]:
    """Return a profile's bandwidths in bytes a second, under the names that ``bandwidths`` uses."""
    return {"out": profile.link_out_bandwidth, "in": profile.link_in_bandwidth, "latency": profile.link_latency_s,
            "within the device": profile.memory_bandwidth * profile.efficiency["copy"]}


def bandwidths(device: CudaDevice, nbytes: int) -> dict[str, float]:
    """Measure bytes a second by direction, and under "latency" the seconds of a small copy."""
    vendor = device.vendor
    memory, host = vendor.allocate(2 * nbytes), vendor.allocate_host(2 * nbytes)
    streams, events = [vendor.stream(), vendor.stream()], [vendor.event() for _ in range(3)]

    def seconds(*copies: tuple[int, int], size: int = nbytes) -> float:
        """Return the seconds of these copies (to, from), made at the same time, each on a stream of its own."""
        vendor.record(events[0], streams[0])
        vendor.wait(streams[1], events[0])
        for stream, (to, origin) in zip(streams, copies, strict=False):
            vendor.copy(to, origin, size, stream)
        vendor.record(events[1], streams[1])
        vendor.wait(streams[0], events[1])
        vendor.record(events[2], streams[0])
        vendor.synchronize(events[2])
        return vendor.elapsed(events[0], events[2])

    def typical(*copies: tuple[int, int], size: int = nbytes) -> float:
        seconds(*copies, size=size)  # warms up
        return median(seconds(*copies, size=size) for _ in range(RUNS))
    out, into = (host, memory), (memory + nbytes, host + nbytes)
    try:
        return {"out": nbytes / typical(out), "in": nbytes / typical(into),
                "both ways": 2 * nbytes / typical(out, into),
                "within the device": 2 * nbytes / typical((memory + nbytes, memory)),
                "latency": typical(out, size=SMALL)}
    finally:
        vendor.free(memory)
        vendor.free_host(host)
