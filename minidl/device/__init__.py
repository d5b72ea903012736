"""Devices: numerics x clock, behind one set of verbs (``contract.Device``)."""

import sys
from types import ModuleType

from minidl.device import profiles, sim
from minidl.device.contract import Device
from minidl.device.numba_settings import require_numba
from minidl.device.precision import DEFAULT, precision_of
from minidl.errors import UserError


def create(name: str, *, poisoned: bool = False, precision: str = DEFAULT, cupti: bool = False) -> Device:
    """The device with this name. Raises UserError if there is none.

    "cpu" or "cpu:threads": computes on worker threads, on the wall clock; measures the link now.
    "cpu:FILE.json": the same, with the link and the nominal durations of a file that ``minidl.calibrate`` wrote.
    "cpu:virtual": computes on the virtual clock, so every interleaving is deterministic.
    "cuda" or "cuda:NUMBER": an NVIDIA GPU.
    "sim:PROFILE" or "sim:FILE.json": computes no numbers.

    precision: a name of ``device.precision``. It decides whether products and convolutions of fp32 tensors may use
    TF32, which changes numbers on a GPU and times on a simulated one; the CPU is exact. A GPU that cannot compute in
    bf16 refuses bf16.
    cupti: on a GPU, time each kernel of a measured iteration by itself, see ``CudaDevice``.
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
        return sim.create(name, profile if chosen.tf32 else profiles.without_tf32(profile))
    if name == "cuda" or name.startswith("cuda:"):
        if poisoned:
            raise UserError(f"{name}: freed memory can be poisoned on the CPU only")
        from minidl.device import cuda

        return cuda.create(name, precision=chosen, cupti=cupti)
    known = ", ".join(sorted(profiles.PROFILES))
    raise UserError(f"unknown device {name!r}: cuda, cpu, cpu:virtual, cpu:<file.json>, or sim:<profile> with one of "
                    f"{known}")


class _Named(ModuleType):
    """This package as PyTorch's ``device`` is called: ``minidl.device("cuda", 0)``."""

    def __call__(self, name: object = "cpu", index: int | None = None) -> str:
        """The name itself: tensors are on their runtime's device, whichever is named."""
        return str(name) if index is None else f"{name}:{index}"


sys.modules[__name__].__class__ = _Named

__all__ = ["Device", "create"]
