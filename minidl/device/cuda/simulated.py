"""A simulated GPU whose convolutions have the plans of cuDNN, with their workspaces, instead of modelled algorithms.

What was not listed for the GPU falls back to the model. Times are modelled either way: the plan that cuDNN's heuristics
like best takes what the model gives to the algorithms of the deterministic mode that need little workspace, each
further one a little more (``convolution.algorithms``). Layout is not simulated: a trace has the same calls as on any
other device, and convolutions are looked up as if their operands lay as they were listed.

Knows plans and the cost model; no numbers and no library.
"""

from collections.abc import Sequence
from typing import Any

from minidl.device.cost_model import algorithms as modelled_algorithms
from minidl.device.cuda import convolution, layout, listed
from minidl.device.cuda.convolution import Steps
from minidl.device.device import Device
from minidl.device.profiles import Profile
from minidl.meta import Algorithm, Cost, Meta, meta


class SimulatedCuda(Device):
    """Shapes alone on the virtual clock, with the plans that ``profile.cudnn_plans`` names. Raises UserError."""

    def __init__(self, name: str, profile: Profile) -> None:
        super().__init__(name, profile)
        self.listed = listed.load(profile.cudnn_plans)

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        modelled = modelled_algorithms(self.profile, op_name, inputs, outputs, attrs, cost)
        if op_name not in convolution.KINDS:
            return modelled
        steps = steps_of(self.profile, op_name, inputs, outputs[0], attrs)
        plans = self.listed.of(steps.convolution)
        if not plans:
            return modelled
        seconds = min(a.seconds for a in modelled if a.bits_class == modelled[0].bits_class
                      and a.workspace <= convolution.MOST_WORKSPACE)
        return convolution.algorithms(steps, plans, seconds)


def steps_of(profile: Profile, op_name: str, inputs: Sequence[Meta], output: Meta,
             attrs: dict[str, Any]) -> Steps:
    """How the GPU of a profile would carry a convolution out, all of whose operands lie as they should."""
    lying = [layout.channels_last(meta(m.shape, m.dtype)) for m in (output, *inputs)]
    return convolution.steps(op_name, lying[1:], lying[0], attrs, tf32=profile.tensor_flops > profile.peak_flops)
