"""Simulators by profile: each has the algorithms of the profile's device."""

from functools import partial

from minidl.device.contract import Device
from minidl.device.profiles import Profile
from minidl.device.sim import SimDevice


def create(name: str, profile: Profile) -> Device:
    """Return the simulator of a profile, with the algorithms of the profile's device.
    Raises UserError if the profile names cuDNN plans that were not listed."""
    if profile.rates and profile.rates_of == "cuda":
        from minidl.device.cuda.simulated import MeasuredWays

        return SimDevice(name, profile, MeasuredWays(profile))
    if profile.rates:
        from minidl.device.cpu.algorithms import cpu_algorithms

        return SimDevice(name, profile, partial(cpu_algorithms, profile))
    if profile.cudnn_plans:
        from minidl.device.cuda.simulated import ListedWays

        return SimDevice(name, profile, ListedWays(profile))
    return SimDevice(name, profile)
