"""What plans are weighed with: the link's costs, and the bytes that a plan may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """What a plan is weighed with: seconds a byte takes on the link each way, and its latency a copy."""

    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a plan may use."""

    device_bytes: int
    host_bytes: int
