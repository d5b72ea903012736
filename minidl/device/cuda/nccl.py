"""Messages between the GPUs of several ranks by NCCL, through CuPy's binding of it (``cupy.cuda.nccl``).

The messages of one call are one group of NCCL: all are under way at once, as one kernel on the given stream.

Knows addresses and bytes; no tensors and no order of sums.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from minidl.device.cuda import missing
from minidl.device.cuda.seam import Message
from minidl.errors import DeviceError, UserError

LEAST_VERSION = 20700  # from 2.7 on NCCL sends messages, as it writes its version


def load() -> Any:
    """Return CuPy's module for NCCL. Raises UserError if NCCL cannot be loaded, or is too old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's own words about what is missing
        from cupy.cuda import nccl
    if not nccl.available:
        raise UserError(f"ranks on GPUs need NCCL: pip install nvidia-nccl-cu{missing.toolkit_cuda() or 13}")
    if nccl.get_version() < LEAST_VERSION:
        raise UserError(f"ranks on GPUs need NCCL 2.7 or newer, not {nccl.get_version()} (as NCCL writes its version)")
    return nccl


class Nccl:
    """``seam.Network``. bind: makes this rank's GPU current in the calling thread. load: returns CuPy's module."""

    def __init__(self, bind: Callable[[], None], load: Callable[[], Any] = load) -> None:
        self._bind, self._load = bind, load

    def meeting(self, *, first: bool) -> Any:
        """Return NCCL's unique id for a new group on its first rank, None on others. Raises UserError without NCCL."""
        library = self._load()
        return library.get_unique_id() if first else None

    def communicator(self, meeting: Any, count: int, rank: int) -> "NcclRank":
        """Return this GPU's communicator in the group; waits for the other ranks. Raises DeviceError."""
        return NcclRank(self._load(), self._bind, meeting, count, rank)


class NcclRank:
    """``seam.Communicator``: one rank of a group.

    library  CuPy's module
    bind     makes this rank's GPU current in the calling thread
    meeting  the group's id (``get_unique_id`` of the first rank)
    """

    def __init__(self, library: Any, bind: Callable[[], None], meeting: Any, count: int, rank: int) -> None:
        self._library, self._bind = library, bind
        bind()
        try:
            self._group = library.NcclCommunicator(count, meeting, rank)
        except library.NcclError as error:
            raise DeviceError(f"NCCL has not joined rank {rank} of {count}: {error}") from error

    def exchange(self, messages: Sequence[Message], stream: Any) -> None:
        """Issue one group of messages to a stream. Raises DeviceError."""
        self._bind()
        library, group, kind, address = self._library, self._group, self._library.NCCL_UINT8, stream.address
        try:
            group.check_async_error()  # of an earlier exchange, found while it was under way
            library.groupStart()
            try:
                for message in messages:
                    issue = group.send if message.sends else group.recv
                    issue(message.address, message.nbytes, kind, message.peer, address)
            finally:
                library.groupEnd()
        except library.NcclError as error:
            raise DeviceError(f"NCCL: {error}") from error

    def abort(self) -> None:
        """End the communicator by ncclCommAbort."""
        self._bind()
        self._group.abort()

    def close(self) -> None:
        """End the communicator by ncclCommDestroy."""
        self._bind()
        self._group.destroy()
