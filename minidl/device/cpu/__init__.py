"""The CPU device. Kernels are imported only when a device is made."""

from minidl.device import profiles
from minidl.device.contract import Device


def create(name: str, *, poisoned: bool = False) -> Device:
    """Return the CPU device named "cpu", "cpu:threads", "cpu:FILE.json" or "cpu:virtual".
    The name itself is not checked. Raises UserError for a FILE.json that is no profile.

    poisoned: fill the arena and freed bytes with NaN.
    """
    if name == "cpu:virtual":
        from minidl.device.cpu.device import VirtualCpu

        return VirtualCpu(name, profiles.get("cpu"), poisoned=poisoned)
    from minidl.device.cpu.device import ThreadedCpu
    from minidl.device.cpu.link import with_measured_link

    measured = profiles.load(name[4:]) if name.endswith(".json") else with_measured_link(profiles.get("cpu"))
    return ThreadedCpu(name, measured, poisoned=poisoned)
