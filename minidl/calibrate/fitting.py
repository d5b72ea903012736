"""Fits rates to measured calls: seconds = sum of rate x amount over the terms of a call's work, no rate below zero."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from minidl.device.profiles import KINDS, TERMS

ENOUGH = 12  # samples to fit the rates of up to six terms


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured call: its kind of work, FLOPs, bytes and seconds, from which a profile's rates are fitted.

    keys: the names of the rates that may apply to it, special ones first. amounts: term of its cost -> its amount.
    """

    keys: tuple[str, ...]
    kind: str
    flops: float
    nbytes: float
    amounts: Mapping[str, float]
    seconds: float


def fit(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the rates (term -> seconds per amount, if not 0) with which the samples' seconds are predicted best.

    Squared errors are divided by the seconds. So long calls count more than short ones, as in a step, but not by the
    square. Terms that the samples cannot tell apart share their time in some way. All rates are >= 0
    (non-negative least squares: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23).
    """
    from scipy.optimize import nnls

    names = [term for term in TERMS if any(sample.amounts.get(term) for sample in samples)]
    amounts = np.array([[sample.amounts.get(name, 0.0) for name in names] for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    scale = amounts.max(axis=0)  # the amounts are of very different sizes
    weight = seconds ** -0.5
    rates, _ = nnls(amounts / scale * weight[:, None], seconds * weight)
    return {name: float(rate) for name, rate in zip(names, rates / scale, strict=True) if rate}


def rates(samples: Iterable[Sample]) -> dict[str, dict[str, float]]:
    """Return name -> the rates of this name, for every name in the samples' keys.

    A special name (a window and stride of a convolution) with few samples gets the rates of its general name, times the
    factor that fits its samples. A fit of its own would be arbitrary.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        for key in sample.keys:
            groups.setdefault(key, []).append(sample)
    found: dict[str, dict[str, float]] = {}
    for group in groups.values():
        *special, general = group[0].keys
        if general not in found:
            found[general] = fit(groups[general])
        for key in special:
            alike = groups[key]
            found[key] = fit(alike) if len(alike) >= ENOUGH else scaled(found[general], alike)
    return dict(sorted(found.items()))


def scaled(general: Mapping[str, float], samples: Sequence[Sample]) -> dict[str, float]:
    """Return the general rates times one factor: the samples' median of measured over predicted seconds."""
    factor = median(s.seconds / sum(rate * s.amounts.get(term, 0.0) for term, rate in general.items()) for s in samples)
    return {term: rate * factor for term, rate in general.items()}


def peaks(samples: Sequence[Sample], bandwidth: float) -> tuple[float, float, dict[str, float]]:
    """Return the peak FLOP/s, the peak bytes/s, and for each kind of work the usual share of its peak (efficiency).

    bandwidth: bytes/s of copies. A cache may be faster, so a peak is the best of all calls. The efficiency of a kind is
    the median over its longer calls. A kind of work without kernels on the CPU takes the value of another kind.
    """
    flops = max(s.flops / s.seconds for s in samples if s.kind in ("conv", "matmul"))
    nbytes = max(bandwidth, *(s.nbytes / s.seconds for s in samples))
    efficiency = {}
    for kind in KINDS:
        alike = [s for s in samples if s.kind == kind]
        long = sorted(alike, key=lambda s: s.seconds)[-max(1, len(alike) // 2):] if alike else []
        if long:
            efficiency[kind] = median(s.flops / s.seconds / flops if kind in ("conv", "matmul")
                                      else s.nbytes / s.seconds / nbytes for s in long)
    for kind in KINDS:
        if kind not in efficiency:
            relative = "conv" if kind in ("winograd", "fft") else "elementwise"
            efficiency[kind] = bandwidth / nbytes if kind == "copy" else efficiency[relative]
    return flops, nbytes, efficiency
