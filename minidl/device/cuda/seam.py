"""The one seam to the vendor's libraries: every call that the CUDA device makes of a driver, of cuDNN or of cuBLAS.

``real.Cuda`` carries these calls out; tests replace it with one that keeps no GPU but judges every call. Addresses are
plain integers, on the device and in page-locked memory alike; streams and events are handles of the vendor's choice.
Any thread may call, and vendors of several GPUs may be open. Nothing here waits but ``synchronize``. Knows no tensors,
no arena and no operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from minidl.kernels.cuda.launch import Source

Handle = Any  # a stream or an event
Extent = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """One call of cuBLAS in its own, column-major terms: ``count`` products C = op(A) op(B), or C + op(A) op(B).

    op(A) is m x k, op(B) k x n, C m x n; ``lda``, ``ldb``, ``ldc`` are the elements between columns as they are stored,
    ``step_*`` those between one product's operand and the next one's (0: the same for all).
    dtype: of all three; sums are taken in fp32 (fp64 for float64), on TF32 tensor cores if ``tf32``.
    """

    dtype: str
    transpose_a: bool
    transpose_b: bool
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    step_a: int = 0
    step_b: int = 0
    step_c: int = 0
    count: int = 1
    accumulate: bool = False
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """What cuDNN is told of a convolution or of a gradient of one: x [N, C, H, W], w [K, C, R, S], y [N, K, P, Q].

    kind: ``conv2d`` computes y, ``conv2d_dgrad`` x, ``conv2d_wgrad`` w.
    channels_last: how all three lie; else in C order, which is for listing plans only.
    """

    kind: str
    dtype: str
    x: Extent
    w: Extent
    y: Extent
    stride: tuple[int, int]
    padding: tuple[int, int]
    tf32: bool = False
    channels_last: bool = True


@dataclass(frozen=True, slots=True)
class Attention:
    """What cuDNN is told of attention: queries [n, heads, length, depth], keys and values [n, heads, keys, depth].

    In memory the heads of a position lie side by side: [n, length, heads, depth]. Scores are divided by sqrt(depth).

    gradient    dq, dk, dv are computed, in a fixed order; else y, and lse (fp32): [n, heads, length]
    causal      position i sees positions up to i
    dropout     probability with which a probability becomes 0
    mask        extents (1 or those of the scores) of what is added to them, dense; None: nothing is
    """

    gradient: bool
    dtype: str
    n: int
    heads: int
    length: int
    keys: int
    depth: int
    causal: bool
    dropout: float
    mask: Extent | None = None
    mask_dtype: str | None = None


# In which order attention's operands come, by whether it is the gradient; the mask only if there is one.
ATTENTION_OPERANDS = {False: ("y", "lse", "q", "k", "v", "mask"),
                      True: ("dq", "dk", "dv", "dy", "q", "k", "v", "y", "lse", "mask")}


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """One way of cuDNN to run a convolution: its engine and knobs as a name, its workspace in bytes, and its notes."""

    name: str
    workspace: int
    deterministic: bool
    tensor_cores: bool = False


@dataclass(frozen=True, slots=True)
class Properties:
    """What the driver says of the GPU. ``version`` names the libraries whose choices are cached, ``cudnn`` is that of
    cuDNN as the library writes it: 92700."""

    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    version: str
    cudnn: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel, copy or fill that ran: under which number it was given, and when, in seconds of the device's clock."""

    tag: int
    start: float
    end: float


class Recorder(Protocol):
    """Notes when the work of one stream starts and ends."""

    def tag(self, number: int) -> None:
        """What this thread gives to streams from now on is noted under this number."""

    def spans(self) -> list[Span] | None:
        """What was noted since the last time, in any order; None if some of it was lost. The device must be idle."""

    def close(self) -> None:
        """Note nothing any more."""


class Vendor(Protocol):
    """The calls. Each raises ``DeviceError`` with the vendor's own words when it fails."""

    properties: Properties

    # Memory --------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        """The address of device memory, at a multiple of 256. Raises DeviceError if there is not enough."""

    def free(self, address: int) -> None:
        """Give device memory back, by the address that ``allocate`` returned."""

    def allocate_host(self, nbytes: int) -> int:
        """The address of page-locked host memory of exactly this size."""

    def free_host(self, address: int) -> None:
        """Give page-locked memory back, by the address that ``allocate_host`` returned."""

    # Streams and events --------------------------------------------------------------------------------------
    def stream(self) -> Handle:
        """A new stream, which waits for no other unless it is told to."""

    def event(self) -> Handle:
        """A new event that notes the time at which it is passed."""

    def record(self, event: Handle, stream: Handle) -> None:
        """The event now stands behind all that the stream was given."""

    def wait(self, stream: Handle, event: Handle) -> None:
        """What the stream is given from now on starts after the event as it was recorded last; the host goes on."""

    def synchronize(self, event: Handle) -> None:
        """The host waits for an event."""

    def done(self, event: Handle) -> bool:
        """Whether an event has been passed."""

    def elapsed(self, start: Handle, end: Handle) -> float:
        """Seconds between two events that have been passed."""

    def recorder(self, stream: Handle) -> Recorder:
        """Note from now on when each kernel, copy and fill of a stream starts and ends."""

    # Bytes ---------------------------------------------------------------------------------------------------
    def copy(self, to: int, origin: int, nbytes: int, stream: Handle) -> None:
        """Copy bytes, from and to the host or the device, in stream order. The ranges do not overlap."""

    def fill(self, address: int, byte: int, nbytes: int, stream: Handle) -> None:
        """Set bytes of device memory, in stream order."""

    def array(self, address: int, shape: Extent, strides: Extent, dtype: str) -> Any:
        """A copy of what lies there (strides in elements), in memory of its own, with the methods of DLPack.

        The copy is made at once: what writes to these bytes must have ended.
        """

    # Work ----------------------------------------------------------------------------------------------------
    def launch(self, source: "Source", blocks: int, arguments: Sequence[int | np.generic], stream: Handle) -> None:
        """Run a kernel, compiled first if need be. Pointers are addresses; a number has the width in the signature:
        the launcher packs a Python int as 8 bytes and a float as a double without asking."""

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: Handle) -> None:
        """Products on the operands at these addresses, in the workspace of ``set_workspace``."""

    def set_workspace(self, address: int, nbytes: int, stream: Handle) -> None:
        """The memory that products may use on a stream, for good: cuBLAS chooses by its size, so it never changes."""

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """Every way to run a convolution, what cuDNN's heuristics like best first. Slow: each one is built."""

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: Handle) -> None:
        """Run a convolution by the plan of this name. A plan that was not built yet is built first, which is slow."""

    def attention_plan(self, attention: Attention) -> PlanInfo | None:
        """The way to run attention that cuDNN's heuristics like best of those that add in a fixed order; None where
        cuDNN does not support it. Slow: it is built, once for ``attend``, too."""

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: Handle) -> None:
        """Run attention by the plan of this name on operands at these addresses (ATTENTION_OPERANDS).

        seed: where its random numbers start from, two 64-bit integers on the device; not read without dropout.
        """

    def close(self) -> None:
        """Give everything back that was not yet: handles, events and streams, whose work has ended."""
