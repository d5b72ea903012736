"""The algorithms of a simulated GPU's convolutions: the plans of cuDNN, or the times of a measured machine.

``ListedWays`` has the plans listed for the GPU, with their workspaces, instead of modelled algorithms; a shape that was
not listed uses the model. Times are modelled in both cases: the heuristics' best plan takes the model's time of the
fastest deterministic algorithm with little workspace, and each further plan a little more (``convolution.algorithms``).
Memory format is not simulated: a trace has the same calls as on any other device, and convolutions are looked up as if
their operands had the listed format.

``MeasuredWays`` uses the times of a measured GPU. Its rates (``profile.rates``, by the terms of ``fitted``) are those
of the fastest algorithm of each call; the other algorithms keep their modelled ratio to it. A call that was not
measured keeps its modelled time.

Both are ``sim.Ways``. Knows rates, plans and the cost model; no numbers and no library.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from minidl.device.cost_model import algorithms as modelled_algorithms
from minidl.device.cuda import convolution, listed, memory_format
from minidl.device.cuda.convolution import ConvolutionSteps
from minidl.device.fitted import call_seconds
from minidl.device.profiles import Profile
from minidl.device.sim import Ways
from minidl.meta import Algorithm, Cost, Meta, meta


class ListedWays:
    """A function that returns the algorithms of calls on the GPU ``profile.cudnn_plans``: its listed cuDNN plans.
    Raises UserError if they were not listed."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.listed = listed.load(profile.cudnn_plans)

    def __call__(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                 cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms of a call."""
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


class MeasuredWays:
    """A function that returns the algorithms of calls on a simulated GPU, with times from fitted rates.
    The fastest takes the seconds that were fitted to measurements, and the others keep their modelled ratio to it; a
    call without rates keeps its modelled times.
    Raises UserError if the profile names cuDNN plans that were not listed."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._modelled: Ways = (ListedWays(profile) if profile.cudnn_plans else partial(modelled_algorithms, profile))

    def __call__(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                 cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms of a call."""
        choices = self._modelled(op_name, inputs, outputs, attrs, cost)
        seconds = call_seconds(self.profile, op_name, "", inputs, outputs, attrs, cost)
        if seconds is None:
            return choices
        factor = seconds / min(choice.seconds for choice in choices)
        return tuple([replace(choice, seconds=choice.seconds * factor) for choice in choices])


def steps_of(profile: Profile, op_name: str, inputs: Sequence[Meta], output: Meta,
             attrs: dict[str, Any]) -> ConvolutionSteps:
    """Return how the GPU of a profile would run a convolution whose operands are all channels-last."""
    lying = [memory_format.channels_last(meta(m.shape, m.dtype)) for m in (output, *inputs)]
    return convolution.steps(op_name, lying[1:], lying[0], attrs, tf32=profile.tensor_flops > profile.peak_flops)
