"""Reserves host memory for tensors that never come to the device, such as optimizer states that are updated there."""

from collections.abc import Callable
from functools import partial

from minidl.device.clock import Extents
from minidl.errors import OutOfMemory
from minidl.memory.bytes.host_pool import HostPool
from minidl.memory.bytes.tiered_pool import TieredPool


class OnHost:
    """The host memory of such tensors. kept_bytes: the bytes that they take of the pool, which no plan may use."""

    def __init__(self, pool: HostPool | TieredPool) -> None:
        self.pool, self.kept_bytes = pool, 0
        self._given_back: list[Extents] = []  # of tensors that are gone

    @property
    def left_bytes(self) -> int:
        """The bytes that swapped tensors may take."""
        return self.pool.capacity - self.kept_bytes

    def keep(self, nbytes: int) -> Callable[[], None]:
        """Reserve bytes; return a function that gives them back, from any thread. Raises OutOfMemory.
        Bytes given back are free only from the next call of this method on: the collector may interrupt any work."""
        while self._given_back:
            gone = self._given_back.pop()
            self.kept_bytes -= sum(size for _, size in gone)
            self.pool.free(gone)
        extents = self.pool.allocate(nbytes)
        if extents is None:
            free = self.pool.capacity - self.pool.used_bytes
            raise OutOfMemory(f"{nbytes} bytes of optimizer states are to stay in host memory, which has {free} of "
                              f"{self.pool.capacity} free", host_full=True)
        self.kept_bytes += nbytes
        return partial(self._given_back.append, extents)
