"""The seam: an interface with every call that the CUDA device makes to driver, cuDNN, cuBLAS or NCCL.

``real.Cuda`` executes these calls; tests replace it with a vendor that needs no GPU and checks every call. Addresses
are plain integers, on the device and in page-locked memory alike; streams and events are handles of the vendor's
choice. Any thread may call, and vendors of several GPUs may be open. Only ``synchronize`` waits for issued work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from minidl.kernels.cuda.launch import DeviceFunction

Handle = Any  # a stream or an event
Extent = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """One call of cuBLAS in its own, column-major terms: ``count`` products C = op(A) op(B), or C + op(A) op(B).

    op(A) is m x k, op(B) k x n, C m x n; ``lda``, ``ldb``, ``ldc`` are the elements between stored columns, ``step_*``
    the elements between the operands of consecutive products (0: the same operand for all).
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
    """A convolution or a gradient of one, as cuDNN sees it: x [N, C, H, W], w [K, C / groups, R, S],
    y [N, K, P, Q]. cuDNN derives the number of groups from these extents.

    kind: ``conv2d`` computes y, ``conv2d_dgrad`` x, ``conv2d_wgrad`` w.
    channels_last: True if all three are; False (contiguous) is for listing plans only.
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
    """Attention as cuDNN sees it: queries [n, heads, length, depth], keys and values [n, heads, keys, depth].

    In memory all are [n, length, heads, depth]. Scores are divided by sqrt(depth).

    gradient    True: dq, dk, dv are computed, in a fixed order; else y, and lse (fp32) [n, heads, length], the
                logarithm of each row's sum of exp(score)
    causal      position i sees positions up to i
    dropout     the probability with which an attention weight becomes 0
    mask        extents (1 or those of the scores) of a contiguous mask that is added to the scores; None: no mask
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


# The order of attention's operands, by ``gradient``; the mask only if there is one.
ATTENTION_OPERANDS = {False: ("y", "lse", "q", "k", "v", "mask"),
                      True: ("dq", "dk", "dv", "dy", "q", "k", "v", "y", "lse", "mask")}


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """One plan of cuDNN: its engine and knobs as a name, and the bytes of its workspace.

    deterministic  True if it adds in a fixed order
    tensor_cores   True if it computes on tensor cores
    """

    name: str
    workspace: int
    deterministic: bool
    tensor_cores: bool = False


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of the GPU, from the driver.

    version  the versions of cuDNN, cuBLAS and driver as a text, which names files of cached plans
    cudnn    the version of cuDNN as the library writes it, such as 92700
    uuid     the GPU's own name, which no other GPU has, on any machine
    """

    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    version: str
    cudnn: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class TimedWork:
    """A kernel, copy or fill that ran: its tag, and its start and end in seconds of the device's clock."""

    tag: int
    start: float
    end: float


class StreamRecorder(Protocol):
    """A recorder of when the work of one stream starts and ends."""

    def tag(self, number: int) -> None:
        """Tag the work that this thread issues from now on with this number."""

    def spans(self) -> list[TimedWork] | None:
        """Return the spans since the last call, in any order; None if some were lost. The device must be idle."""

    def close(self) -> None:
        """Stop recording."""


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes of device memory that one rank sends to another: ``sends`` is True on the rank that sends them.

    peer: the other rank. The n-th message that a rank receives from a peer is the n-th that the peer sends to it."""

    peer: int
    address: int
    nbytes: int
    sends: bool


class Communicator(Protocol):
    """This GPU among those of all ranks."""

    def exchange(self, messages: Sequence[Message], stream: Handle) -> None:
        """Send and receive messages at once, in stream order; the host does not wait.
        Messages that are received must not overlap others. If it raises DeviceError, it must be aborted."""

    def abort(self) -> None:
        """End the communicator, and the work that waits for other ranks. Any thread may call this."""

    def close(self) -> None:
        """End the communicator, whose work must have ended."""


class Network(Protocol):
    """The way to the GPUs of other ranks."""

    def meeting(self, *, first: bool) -> Any:
        """Return the id by which the GPUs of a group find each other, on its first rank; None on the others.
        Raises UserError, on every rank where NCCL is missing."""

    def communicator(self, meeting: Any, count: int, rank: int) -> Communicator:
        """Return the communicator of rank ``rank`` of ``count``; wait until all of them have called this.
        meeting: the id of the first rank. Raises DeviceError if they cannot be connected."""


class Vendor(Protocol):
    """The calls to the vendor's libraries. A call that fails raises ``DeviceError`` with the vendor's message."""

    properties: Properties

    @property
    def network(self) -> Network:
        """The way to the GPUs of other ranks."""

    # Memory --------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        """Allocate device memory; return its address, a multiple of 256. Raises DeviceError if there is not enough."""

    def free(self, address: int) -> None:
        """Free device memory, by the address that ``allocate`` returned."""

    def allocate_host(self, nbytes: int) -> int:
        """Allocate page-locked host memory of exactly this size; return its address."""

    def free_host(self, address: int) -> None:
        """Free page-locked memory, by the address that ``allocate_host`` returned."""

    # Streams and events --------------------------------------------------------------------------------------
    def stream(self) -> Handle:
        """Create a stream, which waits for no other unless told to."""

    def event(self) -> Handle:
        """Create an event that records the time at which it completes."""

    def record(self, event: Handle, stream: Handle) -> None:
        """Record the event after all work issued to the stream so far."""

    def wait(self, stream: Handle, event: Handle) -> None:
        """Make later work on ``stream`` start after the event's last recording; the host does not wait."""

    def synchronize(self, event: Handle) -> None:
        """Block the host until an event is complete."""

    def done(self, event: Handle) -> bool:
        """Return True if an event is complete."""

    def elapsed(self, start: Handle, end: Handle) -> float:
        """Return the seconds between two complete events."""

    def recorder(self, stream: Handle) -> StreamRecorder:
        """Start recording when each kernel, copy and fill of a stream starts and ends."""

    # Bytes ---------------------------------------------------------------------------------------------------
    def copy(self, to: int, origin: int, nbytes: int, stream: Handle) -> None:
        """Copy bytes, from and to the host or the device, in stream order. The ranges do not overlap."""

    def fill(self, address: int, byte: int, nbytes: int, stream: Handle) -> None:
        """Set each of ``nbytes`` bytes of device memory to ``byte``, in stream order."""

    def array(self, address: int, shape: Extent, strides: Extent, dtype: str) -> Any:
        """Return a copy of these device values (strides in elements) in memory of its own, with support for DLPack.

        The copy is made at once: kernels that write these bytes must have ended.
        """

    # Work ----------------------------------------------------------------------------------------------------
    def launch(self, source: "DeviceFunction", blocks: int, arguments: Sequence[int | np.generic],
               stream: Handle) -> None:
        """Run a kernel; compile it first if needed. Pointers are addresses.

        A number needs the width of the kernel's signature: an unchecked Python int is packed as 8 bytes, a float as a
        double.
        """

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: Handle) -> None:
        """Run a product in the workspace of ``set_workspace``. c, a, b: the addresses of the result and the factors."""

    def set_workspace(self, address: int, nbytes: int, stream: Handle) -> None:
        """Set the workspace of products on a stream, for good: cuBLAS chooses algorithms by its size."""

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """Return the plans for a convolution that can be built, in the order of cuDNN's heuristics.
        They are exact for fp32 without ``tf32``. Slow: each one is built."""

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: Handle) -> None:
        """Run a convolution by the plan of this name. The first run builds the plan, which is slow."""

    def attention_plan(self, attention: Attention) -> PlanInfo | None:
        """Return the first plan for attention, in cuDNN's order, that adds in a fixed order; None if there is none.

        Slow: it builds the plan, which ``attend`` then reuses.
        """

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: Handle) -> None:
        """Run attention by the plan of this name on operands at these addresses (ATTENTION_OPERANDS).

        seed: the address of two 64-bit integers on the device that seed its random numbers; not read without dropout.
        """

    def close(self) -> None:
        """Free everything that is left: handles, events and streams, whose work must have ended."""
