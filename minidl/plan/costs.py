"""What plans are weighed with: the link's costs, and the bytes that a plan may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """What a plan is weighed with: seconds a byte takes on the link each way, and its latency a copy.

    contention  seconds that computation loses for each second that a copy runs beside it: none on a GPU, whose copies
                have engines of their own; many where copies take processors and memory from the kernels.
    """

    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float
    contention: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a plan may use."""

    device_bytes: int
    host_bytes: int
