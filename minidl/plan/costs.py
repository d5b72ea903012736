"""The costs of copies over the link between device and host and to the disk, and the bytes that a plan may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskCosts:
    """The costs of a disk behind host memory, which does one copy at a time, in either direction.

    memory_bytes   bytes of host memory; a copy for which they have no room goes to the disk. Its time is the link's or
                   the disk's, whichever is longer.
    """

    memory_bytes: int
    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of copies: seconds per byte over the link in each direction, and the latency of a copy.

    contention  seconds that computation loses per second of a concurrent copy: 0 on a GPU with copy engines, more where
                copies use the processors and memory bandwidth of the kernels, 1 where computation waits for copies.
    disk        the disk behind host memory, or None.
    move_seconds_per_byte   of a copy within the device, which runs on the compute stream."""

    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float
    contention: float = 0.0
    disk: DiskCosts | None = None
    move_seconds_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bytes that a plan may use on the device and in host memory.
    addresses  True if the device is an arena in which a plan chooses addresses; False if only byte counts matter."""

    device_bytes: int
    host_bytes: int
    addresses: bool = True
