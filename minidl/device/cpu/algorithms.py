"""The algorithms of a call on the CPU: its kernels' variants, with times fitted to a measured machine.

A variant that was not measured gets the time of a measured one, scaled by their relative times. If none was measured,
the roofline of ``cost_model`` gives the time. The CPU device and its simulation have the same algorithms and
workspaces.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minidl.device.cost_model import kernel_seconds
from minidl.device.fitted import call_seconds
from minidl.device.profiles import Profile
from minidl.kernels.cpu import ALGORITHMS
from minidl.meta import Algorithm, Cost, Meta


def cpu_algorithms(profile: Profile, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
                   attrs: dict[str, Any], cost: Cost) -> tuple[Algorithm, ...]:
    """Return the algorithms of a call on the CPU, with measured, scaled or modelled seconds (see this module)."""
    if not all(m.size for m in (*inputs, *outputs)):
        return (Algorithm("", 0.0),)  # there is nothing to choose between
    if cost.kind == "host":  # the device's memory is the host's
        cost = replace(cost, kind="elementwise")
    variants = ALGORITHMS.get(op_name)
    if variants is None:
        seconds = call_seconds(profile, op_name, "", inputs, outputs, attrs, cost)
        return (Algorithm("", kernel_seconds(profile, cost.kind, cost.flops, cost.nbytes) if seconds is None
                          else seconds),)
    known = {v.name: call_seconds(profile, op_name, v.name, inputs, outputs, attrs, cost) for v in variants}
    # Seconds of a variant whose relative time is 1.
    unit = next((seconds / v.relative_time for v in variants if (seconds := known[v.name]) is not None),
                kernel_seconds(profile, cost.kind, cost.flops, cost.nbytes))
    return tuple(Algorithm(v.name, v.relative_time * unit if (seconds := known[v.name]) is None else seconds,
                           v.workspace(inputs, outputs, attrs), v.bits_class) for v in variants)
