"""A vendor whose calls do nothing, so that the host time of the executor, the manager and the CUDA device remains.

Its calls cost what a call of Python costs, about 0.1 microseconds; the real ones cost 0.3 to 4 more, each. Knows no
bytes, and answers every question about the past with yes.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

from minidl.device.cuda.seam import Attention, Convolution, Gemm, PlanInfo, Properties, StreamRecorder


class NullCuda:
    """``minidl.device.cuda.seam.Vendor``. ``calls`` counts what would have been given to a stream; ``seconds`` lie
    between any two events."""

    def __init__(self, memory_bytes: int = 1 << 40, *, seconds: float = 1e-5) -> None:
        self.properties = Properties("null", memory_bytes, memory_bytes, (9, 0), "0")
        self.calls = 0
        self.seconds = seconds
        self._handles = count(1)
        self._addresses = count(1 << 44, 1 << 42)
        self._held: list[bytearray] = []

    def allocate(self, nbytes: int) -> int:
        """An address that nothing else has."""
        return next(self._addresses)

    def free(self, address: int) -> None:
        """Nothing."""

    def allocate_host(self, nbytes: int) -> int:
        """Real memory of the host, held for ever."""
        import numpy as np

        self._held.append(np.empty(nbytes, np.uint8))  # type: ignore[arg-type] # host values are copied into it
        return int(self._held[-1].ctypes.data)  # type: ignore[attr-defined]

    def free_host(self, address: int) -> None:
        """Nothing."""

    def stream(self) -> int:
        """A new handle."""
        return next(self._handles)

    def event(self) -> int:
        """A new handle."""
        return next(self._handles)

    def record(self, event: Any, stream: Any) -> None:
        """Nothing."""

    def wait(self, stream: Any, event: Any) -> None:
        """Nothing."""

    def synchronize(self, event: Any) -> None:
        """Nothing: all has ended."""

    def done(self, event: Any) -> bool:
        """Always."""
        return True

    def elapsed(self, start: Any, end: Any) -> float:
        """As long as any two events are apart."""
        return self.seconds

    def recorder(self, stream: Any) -> StreamRecorder:
        """None is made."""
        raise NotImplementedError

    def copy(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Counted."""
        self.calls += 1

    def fill(self, address: int, byte: int, nbytes: int, stream: Any) -> None:
        """Counted."""
        self.calls += 1

    def array(self, address: int, shape: Any, strides: Any, dtype: str) -> Any:
        """There is none."""
        raise NotImplementedError

    def launch(self, source: Any, blocks: int, arguments: Sequence[Any], stream: Any) -> None:
        """Counted."""
        self.calls += 1

    def set_workspace(self, address: int, nbytes: int, stream: Any) -> None:
        """Nothing."""

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: Any) -> None:
        """Counted."""
        self.calls += 1

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """One plan, with a small workspace."""
        return [PlanInfo("0", 512, True)]

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: Any) -> None:
        """Counted."""
        self.calls += 1

    def attention_plan(self, attention: Attention) -> PlanInfo | None:
        """A plan with a small workspace."""
        return PlanInfo("0", 512, True)

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: Any) -> None:
        """Counted."""
        self.calls += 1

    def close(self) -> None:
        """Nothing."""
