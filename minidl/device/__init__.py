"""Devices: numerics x clock, behind one set of verbs (``device.Device``)."""

from minidl.device import profiles
from minidl.device.device import Device, DryDevice
from minidl.errors import UserError


def create(name: str, *, poisoned: bool = False) -> Device:
    """The device of a name: "cpu", "sim:<profile>" or "sim:<file.json>". Raises UserError."""
    if name == "cpu":
        from minidl.device.cpu import CpuDevice  # kernels are loaded only when numbers are wanted

        return CpuDevice(name, profiles.get("cpu"), poisoned=poisoned)
    if name.startswith("sim:"):
        profile = name[4:]
        return Device(name, profiles.load(profile) if profile.endswith(".json") else profiles.get(profile))
    if name == "cuda" or name.startswith("cuda:"):
        raise UserError("the CUDA device is not part of this version yet; use --device sim:<gpu> to study a GPU's "
                        "memory and time, or --device cpu to train")
    known = ", ".join(sorted(profiles.PROFILES))
    raise UserError(f"unknown device {name!r}: cpu, or sim:<profile> with one of {known}")


__all__ = ["Device", "DryDevice", "create"]
