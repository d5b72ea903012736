"""The costs that plans are judged by: of the link and the disk; and the bytes that a plan may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskCosts:
    """A disk behind host memory: one transfer at a time, either way, and each as long as link or disk take for it.

    memory_bytes   of the host come first: a copy that finds no room there goes on to the disk.
    """

    memory_bytes: int
    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs that a plan is judged by: seconds per byte on the link, each way, and the latency of a copy.

    contention  seconds that computation loses for each second that a copy runs beside it: none on a GPU, whose copies
                have engines of their own; many where copies take processors and memory from the kernels; 1 where
                computation stands still meanwhile.
    disk        what lies behind the host's memory; None: nothing.
    move_seconds_per_byte   of a copy within the device, which takes computation's time.
    """

    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float
    contention: float = 0.0
    disk: DiskCosts | None = None
    move_seconds_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a plan may use.

    addresses  whether the device's bytes are an arena, in which a plan says where tensors lie; False: bytes alone
               count.
    """

    device_bytes: int
    host_bytes: int
    addresses: bool = True
