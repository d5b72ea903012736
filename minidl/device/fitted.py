"""The time of one call on a measured machine: a sum over the kinds of its work, each with a fitted rate.

  seconds = sum over terms of rate[term] * amount[term]

  calls      1
  flops      arithmetic operations
  bytes      operands, each moved once; far_bytes: those beyond the size of a cache
  columns    elements of a convolution's unfolded input (none for a 1x1 window that reads its input in place)
  weights    elements of a product's smaller factor, once for each image or head: many small products reread them

A product of M x K by K x N spends its time on 2MKN operations and on its three operands, so these terms also say how
far a shape is from the peak. Rates differ by operation, algorithm and, for convolutions, window and stride. Knows
shapes and profiles; runs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minidl.device.profiles import Profile
from minidl.kernels.roles import ROLES
from minidl.meta import Cost, Meta

NEAR_BYTES = 8 * 2**20  # a call's share of the last-level cache
Terms = dict[str, float]


def terms(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Mapping[str, Any], cost: Cost) -> Terms:
    """Return the amounts of a call's work, by term."""
    amounts = {"calls": 1.0, "bytes": cost.nbytes, "far_bytes": max(0.0, cost.nbytes - NEAR_BYTES)}
    if cost.kind not in ("conv", "matmul"):
        return amounts  # their arithmetic is proportional to their bytes
    amounts["flops"] = cost.flops
    window = _window(op_name, inputs, outputs)
    if window is not None:
        x, w, y = window
        amounts["weights"] = float(x.shape[0] * w.size)
        columns = y.size // y.shape[1] * x.shape[1] * w.shape[2] * w.shape[3]
        amounts["columns"] = 0.0 if _in_place(w, attrs) else float(columns)
    return amounts


def keys(op_name: str, algorithm: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
         attrs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names under which a profile may have rates for a call, the most specific first.

    A convolution with ReLU uses the rates of the plain one: the difference is too small to measure.
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
    """Return the fitted seconds of a call; None if the profile has no rates for it."""
    for key in keys(op_name, algorithm, inputs, outputs, attrs):
        rates = profile.rates.get(key)
        if rates is not None:
            amounts = terms(op_name, inputs, outputs, attrs, cost)
            return max(profile.kernel_floor_s, sum(rate * amounts.get(term, 0.0) for term, rate in rates.items()))
    return None


def _window(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta]) -> tuple[Meta, Meta, Meta] | None:
    """Return (x, w, y) of a convolution or of a gradient of one; None for other operations."""
    return ROLES[op_name].pick(outputs[0], inputs) if op_name in ROLES else None


def _in_place(w: Meta, attrs: Mapping[str, Any]) -> bool:
    return w.shape[2:] == (1, 1) == tuple(attrs["stride"]) and tuple(attrs["padding"]) == (0, 0)
