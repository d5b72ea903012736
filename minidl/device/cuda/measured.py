"""A simulated GPU that was measured: times are sums of fitted terms, ways and workspaces are those of the simulation.

The rates (``profile.rates``, by the terms of ``device/fitted.py``) are of the calls as the GPU carried them out, by the
fastest of their alternatives; the others keep their modelled ratio to it, and what was not measured its modelled time.
Knows rates and modelled alternatives; no numbers and no library.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minidl.device.cuda.simulated import SimulatedCuda
from minidl.device.device import Device
from minidl.device.fitted import call_seconds
from minidl.device.profiles import Profile
from minidl.meta import Algorithm, Cost, Meta


class MeasuredCuda(Device):
    """Shapes alone on the virtual clock. Raises UserError where the profile names plans that were not listed."""

    def __init__(self, name: str, profile: Profile) -> None:
        super().__init__(name, profile)
        self._modelled = SimulatedCuda(name, profile) if profile.cudnn_plans else Device(name, profile)

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        choices = self._modelled.algorithms(op_name, inputs, outputs, attrs, cost)
        seconds = call_seconds(self.profile, op_name, "", inputs, outputs, attrs, cost)
        if seconds is None:
            return choices
        factor = seconds / min(choice.seconds for choice in choices)
        return tuple([replace(choice, seconds=choice.seconds * factor) for choice in choices])
