"""Devices by name. Every device has the same methods (``contract.Device``), whether it computes or only simulates."""

import sys
from types import ModuleType

from minidl.device import profiles, simulators
from minidl.device.contract import Device
from minidl.device.numba_settings import require_numba
from minidl.device.precision import DEFAULT, precision_of
from minidl.errors import UserError


def create(name: str, *, poisoned: bool = False, precision: str = DEFAULT, cupti: bool = False,
           sharing: int = 1, local_rank: int = 0) -> Device:
    """Return a new device for this name. Raises UserError if the name is unknown or the device cannot be used.

    "cpu" or "cpu:threads": computes on worker threads, on the wall clock; measures memory copies when it is made.
    "cpu:FILE.json": the same, with the copy speeds and kernel times of a file that ``minidl.calibrate`` wrote.
    "cpu:virtual": computes on a virtual clock, so every run interleaves streams in the same order.
    "cuda" or "cuda:NUMBER": an NVIDIA GPU. "cuda" is the first one or, for one of several ranks, that of its number.
    "sim:PROFILE" or "sim:FILE.json": computes no numbers; simulates the time of a GPU.

    poisoned: fill the arena and freed memory with NaN, so that a use of freed memory shows in the results. A GPU
    refuses it, and a simulation ignores it.
    precision: "fp32", "tf32" or "bf16". With "tf32", products and convolutions of fp32 tensors may use TF32, which
    changes numbers on a GPU and times on a simulated one; the CPU is exact. A GPU without bf16 refuses "bf16".
    sharing: the number of simulated devices that share the host's link, each with an equal part of its bandwidth.
    local_rank: the number of this rank among those on its machine (``Ranks.local``).
    cupti: True to time each kernel of a measured iteration with CUPTI (GPU only), instead of the gaps between events.
    """
    chosen = precision_of(precision)
    if cupti and name.split(":")[0] != "cuda":
        raise UserError(f"{name}: CUPTI times kernels on a GPU only (device cuda)")
    # Load each kind of device only when it is made: a simulation needs no kernels.
    if name in ("cpu", "cpu:threads", "cpu:virtual") or name.startswith("cpu:") and name.endswith(".json"):
        require_numba()
        from minidl.device import cpu

        return cpu.create(name, poisoned=poisoned)
    if name.startswith("sim:"):
        profile = profiles.named(name[4:])
        profile = profiles.shared(profile, sharing)
        return simulators.create(name, profile if chosen.tf32 else profiles.without_tf32(profile))
    if sharing > 1:
        raise UserError(f"{name} computes: its ranks are processes that mpiexec starts, not {sharing} simulated ones")
    if name == "cuda" or name.startswith("cuda:"):
        if poisoned:
            raise UserError(f"{name}: freed memory can be poisoned on the CPU only")
        from minidl.device import cuda

        return cuda.create(name, precision=chosen, cupti=cupti, local_rank=local_rank)
    known = ", ".join(sorted(profiles.PROFILES))
    raise UserError(f"unknown device {name!r}: cuda, cpu, cpu:virtual, cpu:<file.json>, or sim:<profile> with one of "
                    f"{known}")


class _Named(ModuleType):
    """This package as a callable, like ``torch.device``: ``minidl.device("cuda", 0)`` returns a device's name."""

    def __call__(self, name: object = "cpu", index: int | None = None) -> str:
        """Return the device's name as a string. It selects nothing: a tensor is on the device of its runtime."""
        return str(name) if index is None else f"{name}:{index}"


sys.modules[__name__].__class__ = _Named

__all__ = ["Device", "create"]
