"""Every launch of a step with its work and its seconds, and the simulator's profile that is fitted to them.

Terms and rates are those of ``minidl.calibrate`` (``device/fitted.py``): a later prediction is
a sum over similar calls, not a measurement.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

from minidl.calibrate import fitting
from minidl.calibrate.fitting import Sample
from minidl.device import Device
from minidl.device.clock import Timed
from minidl.device.contract import Operand
from minidl.device.fitted import keys, terms
from minidl.device.profiles import Profile
from minidl.meta import Algorithm, Cost, Meta

Call = tuple[str, tuple[Meta, ...], tuple[Meta, ...]]  # op, inputs, outputs


class Sampler:
    """Collects the flops and bytes of every call that a device launches, and the seconds of every launch."""

    def __init__(self, device: Device) -> None:
        self.seconds: dict[Call, list[float]] = {}
        self._work: dict[Call, Sample] = {}
        self._algorithms, self._launch = device.algorithms, device.launch
        device.algorithms = self._noted  # type: ignore[method-assign]
        device.launch = self._launched  # type: ignore[method-assign]

    def _noted(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
               cost: Cost) -> tuple[Algorithm, ...]:
        self._work[op_name, tuple(inputs), tuple(outputs)] = Sample(
            tuple(keys(op_name, "", inputs, outputs, attrs)), cost.kind, cost.flops, cost.nbytes,
            terms(op_name, inputs, outputs, attrs, cost), 0.0)
        return self._algorithms(op_name, inputs, outputs, attrs, cost)

    def _launched(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
                  attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        call = op_name, tuple(o.meta for o in inputs), tuple(o.meta for o in outputs)
        note = self.seconds.setdefault(call, []).append
        return self._launch(op_name, algorithm, outputs, inputs, attrs, workspace, partial(_tell, note, timed))

    def samples(self) -> list[Sample]:
        """Return one sample for each different call, with its median seconds; calls that took no time are left out."""
        found = []
        for call, work in self._work.items():
            seconds = median(self.seconds.get(call) or [0.0])
            if seconds > 0 and work.kind != "link":
                found.append(replace(work, seconds=seconds))
        return found


def _tell(note: Callable[[float], None], timed: Timed, seconds: float) -> None:
    note(seconds)
    if timed is not None:
        timed(seconds)


def to_data(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Convert samples to dicts and lists for JSON."""
    return [asdict(sample) for sample in samples]


def from_data(data: Sequence[dict[str, Any]]) -> list[Sample]:
    """Return the samples that ``to_data`` has converted."""
    return [Sample(**{**entry, "keys": tuple(entry["keys"])}) for entry in data]


def fitted_profile(known: Profile, samples: Sequence[Sample], link: dict[str, float], *, launch_s: float) -> Profile:
    """Make the profile of a GPU from measurements; ``known`` gives its memory, and rates that were not measured.

    link: bytes a second "out", "in" and "within the device", and "latency" in seconds; launch_s: host seconds of a
    call. Matrix products count as run on tensor cores if the GPU has any; other rates keep their known ratio to these.
    """
    flops, nbytes, efficiency = fitting.peaks(samples, link["within the device"])
    gain = flops / known.tensor_flops
    return replace(
        known, name="measured", title=f"{known.title}, measured", peak_flops=gain * known.peak_flops,
        tensor_flops=flops, bf16_flops=gain * known.bf16_flops, memory_bandwidth=nbytes,
        link_out_bandwidth=link["out"], link_in_bandwidth=link["in"], link_latency_s=link["latency"],
        launch_overhead_s=launch_s,
        kernel_floor_s=min(sample.seconds for sample in samples), half_fill_flops=0.0, half_fill_bytes=0.0,
        efficiency={kind: min(1.0, share) for kind, share in efficiency.items()}, rates=fitting.rates(samples),
        rates_of="cuda")
