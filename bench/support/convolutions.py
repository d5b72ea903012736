"""The convolutions of well-known networks, as a GPU would be asked for them."""

from dataclasses import dataclass, replace
from typing import Any

from minidl import Runtime
from minidl.device import profiles
from minidl.device.cuda import convolution
from minidl.device.cuda.seam import Convolution
from minidl.device.cuda.simulated import steps_of
from minidl.device.dry import DryDevice
from minidl.device.profiles import Profile
from minidl.device.sim import SimDevice
from minidl.lab.training_step import training_step

BATCHES = {  # of training with and without memory management, where speeds or largest batches were published
    "resnet50": (64, 190, 256, 1014, 1440, 1840), "resnet152": (64, 86, 798), "vgg16": (64, 128, 228, 276, 350),
    "inception_v3": (160, 716), "inception_v4": (88, 468),
}


@dataclass(frozen=True)
class Target:
    """The GPU for which convolutions are listed: its profile, the layout of its tensors, and their dtypes."""

    profile: str
    channels_last: bool
    dtypes: tuple[str, ...]


TARGETS = {"h200": Target("h200", True, ("float32", "bfloat16")), "p100": Target("p100", False, ("float32",))}


def convolutions(name: str, batch: int, target: Target) -> list[Convolution]:
    """Return the convolutions of a network's training step, each once, in order."""
    seen: dict[Convolution, None] = {}
    profile = profiles.get(target.profile)

    class Listing(DryDevice):
        """A device that computes shapes only, and adds each convolution to the list."""

        def algorithms(self, op_name: str, inputs: Any, outputs: Any, attrs: dict[str, Any], cost: Any) -> Any:
            if op_name in convolution.KINDS:
                found = steps_of(profile, op_name, inputs, outputs[0], attrs).convolution
                for dtype in target.dtypes:
                    seen[replace(found, dtype=dtype, tf32=found.tf32 and dtype == "float32",
                                 channels_last=target.channels_last)] = None
            return super().algorithms(op_name, inputs, outputs, attrs, cost)

    with Runtime(Listing(_unlisted(profile)), policy="none") as runtime:
        runtime.dry_run(training_step(name, batch))
    return list(seen)


def _unlisted(profile: Profile) -> SimDevice:
    return SimDevice(f"sim:{profile.name}", profile)
