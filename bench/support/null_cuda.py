"""A vendor whose calls do nothing, so that the host time of the executor, the manager and the CUDA device remains.

Its calls cost what a call of Python costs, about 0.1 microseconds; the real ones cost 0.3 to 4 more, each. Knows no
bytes, and answers every question about the past with yes.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

from minidl.device.cuda.seam import (
    Attention,
    Communicator,
    Convolution,
    Gemm,
    Message,
    PlanInfo,
    Properties,
    StreamRecorder,
)


class NullCuda:
    """An implementation of ``minidl.device.cuda.seam.Vendor`` that does nothing. calls: how many calls would have run.

    seconds: the time between any two events.
    """

    def __init__(self, memory_bytes: int = 1 << 40, *, seconds: float = 1e-5) -> None:
        self.properties = Properties("null", memory_bytes, memory_bytes, (9, 0), "0")
        self.network = NullNetwork()
        self.calls = 0
        self.seconds = seconds
        self._handles = count(1)
        self._addresses = count(1 << 44, 1 << 42)
        self._held: list[bytearray] = []

    def allocate(self, nbytes: int) -> int:
        """Return an address that no other allocation has."""
        return next(self._addresses)

    def free(self, address: int) -> None:
        """Do nothing."""

    def allocate_host(self, nbytes: int) -> int:
        """Allocate real memory of the host, which is never freed; return its address."""
        import numpy as np

        self._held.append(np.empty(nbytes, np.uint8))  # type: ignore[arg-type] # host values are copied into it
        return int(self._held[-1].ctypes.data)  # type: ignore[attr-defined]

    def free_host(self, address: int) -> None:
        """Do nothing."""

    def stream(self) -> int:
        """Return a new handle."""
        return next(self._handles)

    def event(self) -> int:
        """Return a new handle."""
        return next(self._handles)

    def record(self, event: Any, stream: Any) -> None:
        """Do nothing."""

    def wait(self, stream: Any, event: Any) -> None:
        """Do nothing."""

    def synchronize(self, event: Any) -> None:
        """Do nothing, as if the event had ended."""

    def done(self, event: Any) -> bool:
        """Return True."""
        return True

    def elapsed(self, start: Any, end: Any) -> float:
        """Return ``seconds``, for any two events."""
        return self.seconds

    def recorder(self, stream: Any) -> StreamRecorder:
        """Raise NotImplementedError: this vendor records no stream."""
        raise NotImplementedError

    def copy(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Add 1 to ``calls``."""
        self.calls += 1

    def fill(self, address: int, byte: int, nbytes: int, stream: Any) -> None:
        """Add 1 to ``calls``."""
        self.calls += 1

    def array(self, address: int, shape: Any, strides: Any, dtype: str) -> Any:
        """Raise NotImplementedError: there are no bytes to show."""
        raise NotImplementedError

    def launch(self, source: Any, blocks: int, arguments: Sequence[Any], stream: Any) -> None:
        """Add 1 to ``calls``."""
        self.calls += 1

    def set_workspace(self, address: int, nbytes: int, stream: Any) -> None:
        """Do nothing."""

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: Any) -> None:
        """Add 1 to ``calls``."""
        self.calls += 1

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """Return one plan, with a small workspace."""
        return [PlanInfo("0", 512, True)]

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: Any) -> None:
        """Add 1 to ``calls``."""
        self.calls += 1

    def attention_plan(self, attention: Attention) -> PlanInfo | None:
        """Return a plan with a small workspace."""
        return PlanInfo("0", 512, True)

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: Any) -> None:
        """Add 1 to ``calls``."""
        self.calls += 1

    def close(self) -> None:
        """Do nothing."""


class NullNetwork:
    """An implementation of ``minidl.device.cuda.seam.Network``."""

    def meeting(self, *, first: bool) -> Any:
        """Return None: there is no id."""

    def communicator(self, meeting: Any, count: int, rank: int) -> Communicator:
        """Return a communicator that sends nothing."""
        return NullCommunicator()


class NullCommunicator:
    """An implementation of ``minidl.device.cuda.seam.Communicator`` that does nothing."""

    def exchange(self, messages: Sequence[Message], stream: Any) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
