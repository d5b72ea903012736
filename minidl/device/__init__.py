"""Devices: numerics x clock, behind one set of verbs (``device.Device``)."""

from minidl.device import profiles
from minidl.device.device import Device, DryDevice
from minidl.errors import UserError


def create(name: str, *, poisoned: bool = False) -> Device:
    """The device of a name. Raises UserError.

    "cpu" or "cpu:virtual" (numbers on the virtual clock), "cpu:threads" (numbers on worker threads and the wall
    clock), "sim:<profile>" or "sim:<file.json>" (no numbers).
    """
    # Kernels are loaded only when numbers are wanted.
    if name in ("cpu", "cpu:virtual"):
        from minidl.device.cpu import CpuDevice

        return CpuDevice(name, profiles.get("cpu"), poisoned=poisoned)
    if name == "cpu:threads":
        from minidl.device.threads import ThreadedCpuDevice

        return ThreadedCpuDevice(name, profiles.get("cpu"), poisoned=poisoned)
    if name.startswith("sim:"):
        profile = name[4:]
        return Device(name, profiles.load(profile) if profile.endswith(".json") else profiles.get(profile))
    if name == "cuda" or name.startswith("cuda:"):
        raise UserError("the CUDA device is not part of this version yet; use --device sim:<gpu> to study a GPU's "
                        "memory and time, or --device cpu to train")
    known = ", ".join(sorted(profiles.PROFILES))
    raise UserError(f"unknown device {name!r}: cpu, cpu:virtual, cpu:threads, or sim:<profile> with one of {known}")


__all__ = ["Device", "DryDevice", "create"]
