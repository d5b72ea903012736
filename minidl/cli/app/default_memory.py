"""The budget and the host memory of a run without such flags."""

from minidl.device import Device
from minidl.outside.machine import free_memory

CPU_BUDGET_SHARE, CPU_HOST_SHARE = 0.6, 0.3  # of the machine's free memory, of which both are taken


def default_memory(device: Device) -> tuple[int, int]:
    """Return (budget, host memory) in bytes for a run without such flags: those of the device's profile.
    A CPU device takes both from the machine's own memory, so it gets parts of the free memory if these are smaller."""
    budget, host = device.profile.memory_bytes, device.profile.host_memory_bytes
    free = free_memory()
    if device.arena_in_host_memory and free is not None:
        budget, host = min(budget, int(free * CPU_BUDGET_SHARE)), min(host, int(free * CPU_HOST_SHARE))
    return budget, host
