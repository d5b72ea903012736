"""Time of one call on a CPU that was measured: a sum of terms of its work, each with a fitted rate.

    seconds = sum over terms of rate[term] * amount[term]

    calls      1
    flops      arithmetic operations
    bytes      operands, each moved once; far_bytes: those beyond what a cache holds
    columns    elements of a convolution's unfolded input (none for a 1x1 window that reads its input in place)
    weights    elements of a product's smaller factor, once for each image or head: what many small products read again

A product of M x K by K x N spends its time on 2MKN operations and on its three operands, so these terms also say how
far a shape stays from the peak. Rates differ by operation, algorithm and, for convolutions, window and stride. Where
nothing was measured, the roofline of ``cost_model`` stands in. Knows shapes and profiles; runs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minidl.device.cost_model import kernel_seconds
from minidl.device.device import Device
from minidl.device.profiles import Profile
from minidl.kernels.cpu import ALGORITHMS
from minidl.kernels.roles import ROLES
from minidl.meta import Algorithm, Cost, Meta

NEAR_BYTES = 8 * 2**20  # what a call finds in a cache that others share with it
Terms = dict[str, float]


def terms(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Mapping[str, Any], cost: Cost) -> Terms:
    """The amounts of a call's work."""
    amounts = {"calls": 1.0, "bytes": cost.nbytes, "far_bytes": max(0.0, cost.nbytes - NEAR_BYTES)}
    if cost.kind not in ("conv", "matmul"):
        return amounts  # their arithmetic is proportional to their bytes
    amounts["flops"] = cost.flops
    window = _window(op_name, inputs, outputs)
    if window is not None:
        x, w, y = window
        amounts["weights"] = float(x.shape[0] * w.size)
        amounts["columns"] = 0.0 if _in_place(w, attrs) else float(y.size // y.shape[1] * (w.size // w.shape[0]))
    return amounts


def keys(op_name: str, algorithm: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
         attrs: Mapping[str, Any]) -> Iterator[str]:
    """Under which names rates of a call may be found, the most special first.

    A convolution with ReLU has those of the one without: what it does more takes no time that could be measured.
    """
    if op_name in ROLES:
        op_name = ROLES[op_name].kind
    name = f"{op_name}/{algorithm}" if algorithm else op_name
    window = _window(op_name, inputs, outputs)
    if window is not None:
        height, width = window[1].shape[2:]
        yield f"{name} {height}x{width}/{attrs['stride'][0]}"
    yield name


def call_seconds(profile: Profile, op_name: str, algorithm: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
                 attrs: Mapping[str, Any], cost: Cost) -> float | None:
    """Fitted time of a call; None where nothing alike was measured."""
    for key in keys(op_name, algorithm, inputs, outputs, attrs):
        rates = profile.rates.get(key)
        if rates is not None:
            amounts = terms(op_name, inputs, outputs, attrs, cost)
            return max(profile.kernel_floor_s, sum(rate * amounts.get(term, 0.0) for term, rate in rates.items()))
    return None


def cpu_algorithms(profile: Profile, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
                   attrs: dict[str, Any], cost: Cost) -> tuple[Algorithm, ...]:
    """The ways to run a call on the CPU. What was not measured is scaled from what was, or taken from the roofline."""
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


class SimulatedCpu(Device):
    """Shapes alone on the virtual clock, with the algorithms and the workspaces of the CPU's kernels."""

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        return cpu_algorithms(self.profile, op_name, inputs, outputs, attrs, cost)


def _window(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta]) -> tuple[Meta, Meta, Meta] | None:
    """(x, w, y) of a convolution in any of its roles; None for other operations."""
    return ROLES[op_name].pick(outputs[0], inputs) if op_name in ROLES else None


def _in_place(w: Meta, attrs: Mapping[str, Any]) -> bool:
    return w.shape[2:] == (1, 1) == tuple(attrs["stride"]) and tuple(attrs["padding"]) == (0, 0)
