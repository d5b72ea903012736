"""Devices: numerics x clock, behind one set of verbs (``device.Device``)."""

from minidl.device import profiles
from minidl.device.device import Device, DryDevice
from minidl.errors import UserError


def create(name: str, *, poisoned: bool = False) -> Device:
    """The device of a name. Raises UserError.

    "cpu" or "cpu:threads" (numbers on worker threads and the wall clock; the link is measured now),
    "cpu:<file.json>" (the same with the link and the nominal durations of a file that ``minidl.calibrate`` wrote),
    "cpu:virtual" (numbers on the virtual clock: every interleaving is deterministic),
    "sim:<profile>" or "sim:<file.json>" (no numbers).
    """
    # Kernels are loaded only when numbers are wanted.
    if name == "cpu:virtual":
        from minidl.device.cpu import CpuDevice

        return CpuDevice(name, profiles.get("cpu"), poisoned=poisoned)
    if name in ("cpu", "cpu:threads") or name.startswith("cpu:") and name.endswith(".json"):
        from minidl.device.link import with_measured_link
        from minidl.device.threads import ThreadedCpuDevice

        measured = profiles.load(name[4:]) if name.endswith(".json") else with_measured_link(profiles.get("cpu"))
        return ThreadedCpuDevice(name, measured, poisoned=poisoned)
    if name.startswith("sim:"):
        profile = profiles.load(name[4:]) if name.endswith(".json") else profiles.get(name[4:])
        if profile.rates:
            from minidl.device.fitted import SimulatedCpu

            return SimulatedCpu(name, profile)
        return Device(name, profile)
    if name == "cuda" or name.startswith("cuda:"):
        raise UserError("the CUDA device is not part of this version yet; use --device sim:<gpu> to study a GPU's "
                        "memory and time, or --device cpu to train")
    known = ", ".join(sorted(profiles.PROFILES))
    raise UserError(f"unknown device {name!r}: cpu, cpu:virtual, cpu:<file.json>, or sim:<profile> with one of {known}")


__all__ = ["Device", "DryDevice", "create"]
