"""CuPy's module for NCCL without a GPU: ranks are threads of one process, and messages go through host memory.

It has the names and arguments of ``cupy.cuda.nccl`` as CuPy 14 documents them. A message takes effect when something
must wait for its stream: the next work of the stream, an event of the stream that the host or another stream waits for.
With ``late`` it takes effect no earlier, and the messages of a group in any order, so work that should have waited for
them, and did not, has other bytes. Every group is judged: the current GPU, the stream, and that what is received
overlaps nothing else.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from races import Violation

if TYPE_CHECKING:
    from fake_cuda import FakeCuda, FakeStream

ID_BYTES, MOST_MESSAGES, LINK = 128, 2048, 100e9


class NcclError(RuntimeError):
    """The error of CuPy's calls."""


class _Here(threading.local):
    """The current GPU of a thread, and its open group of calls."""

    vendor: FakeCuda | None = None
    group: list[_Call] | None = None


@dataclass
class _Call:
    group: NcclCommunicator
    sends: bool
    address: int
    nbytes: int
    peer: int
    stream: int


class _Sent:
    """A message that its sender has issued. It is read when the sender or the receiver first needs it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        self.data: bytes | None = None

    def read(self) -> bytes:
        if self.data is None:
            self.data = ctypes.string_at(self.address, self.nbytes)
        return self.data


class _Wire:
    """The messages of one group of ranks: for each (sender, receiver) all that were sent so far, in order."""

    def __init__(self, ranks: int, patience_s: float) -> None:
        self.ranks, self.patience_s = ranks, patience_s
        self.changed = threading.Condition()
        self.members: set[int] = set()
        self.sent: dict[tuple[int, int], list[_Sent]] = defaultdict(list)

    def until(self, holds: Any, what: str) -> None:
        """Wait, with ``changed`` held, until something holds. Raises Violation if it never does."""
        if not self.changed.wait_for(holds, self.patience_s):
            raise Violation(f"{what} for ever")


class FakeNccl:
    """The module. late: messages take effect at the last moment. seed: of the order in which they do."""

    NcclError = NcclError
    NCCL_UINT8 = 1
    available = True

    def __init__(self, *, late: bool = False, seed: int = 0, patience_s: float = 60.0) -> None:
        self.late, self.patience_s = late, patience_s
        self.here = _Here()
        self.draw = random.Random(seed)
        self.failing: set[int] = set()  # ranks whose next group fails, once the others have issued theirs
        self.groups = 0  # that were issued
        self.wires: dict[bytes, _Wire] = {}
        self._ids = count(1)
        self._making = threading.Lock()

    def get_version(self) -> int:
        return 22707

    def get_unique_id(self) -> bytes:
        return next(self._ids).to_bytes(ID_BYTES, "little")

    def NcclCommunicator(self, ndev: int, commId: bytes, rank: int) -> NcclCommunicator:  # noqa: N802, N803 - CuPy's
        return NcclCommunicator(self, ndev, commId, rank)

    def groupStart(self) -> None:  # noqa: N802
        if self.here.group is not None:
            raise Violation("a group of calls within a group")
        self.here.group = []

    def groupEnd(self) -> None:  # noqa: N802
        calls, self.here.group = self.here.group, None
        if calls is None:
            raise Violation("the end of a group that was not begun")
        if len(calls) > MOST_MESSAGES:
            raise NcclError("NCCL_ERROR_INVALID_USAGE")
        if calls:
            calls[0].group.issue(calls)


class NcclCommunicator:
    """One rank's end of a group."""

    def __init__(self, module: FakeNccl, ndev: int, commId: bytes, rank: int) -> None:  # noqa: N803
        if not isinstance(commId, bytes) or len(commId) != ID_BYTES or not 0 <= rank < ndev:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT")
        assert module.here.vendor is not None, "no GPU is current"
        self.module, self.rank, self.vendor = module, rank, module.here.vendor
        self.received: dict[int, int] = defaultdict(int)  # from each peer
        self.ended = self.aborted = False
        with module._making:
            self.wire = module.wires.setdefault(commId, _Wire(ndev, module.patience_s))
        with self.wire.changed:
            self.wire.members.add(rank)
            self.wire.changed.notify_all()
            self.wire.until(lambda: len(self.wire.members) == ndev, f"rank {rank} waits for ranks to join")

    def _check(self) -> None:
        if self.module.here.vendor is not self.vendor:
            raise Violation("another GPU is current")
        if self.aborted:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: the communicator was aborted")
        if self.ended:
            raise Violation("a call to a communicator that has ended")

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call(True, sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call(False, recvbuf, count, datatype, peer, stream)

    def _call(self, sends: bool, address: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._check()
        if self.module.here.group is None:
            raise Violation("a message outside of a group")
        if count <= 0 or datatype != FakeNccl.NCCL_UINT8 or peer == self.rank or not 0 <= peer < self.wire.ranks:
            raise Violation(f"a message of {count} bytes of type {datatype} to rank {peer}")
        if not all(type(number) is int for number in (address, count, peer, stream)):
            raise Violation("an argument that is no int")
        self.module.here.group.append(_Call(self, sends, address, count, peer, stream))

    def check_async_error(self) -> None:
        self._check()

    def abort(self) -> None:
        self._check()
        self.ended = self.aborted = True
        with self.wire.changed:
            self.wire.changed.notify_all()

    def destroy(self) -> None:
        self._check()
        for stream in self.vendor.streams:
            if stream.arriving:
                raise Violation("a communicator is destroyed with messages under way")
        self.ended = True

    def issue(self, calls: list[_Call]) -> None:
        """Issue a group to its stream."""
        self._check()
        if self.rank in self.module.failing:
            others = [call.peer for call in calls if not call.sends]
            with self.wire.changed:  # the others have sent theirs, and wait
                self.wire.until(lambda: all(len(self.wire.sent[peer, self.rank]) > self.received[peer]
                                            for peer in others), f"rank {self.rank} waits to fail")
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: planted")
        (address,) = {call.stream for call in calls}
        stream = self.vendor.streams[address]
        self.vendor._work(stream, "nccl", sum(call.nbytes for call in calls) / LINK)
        spans = sorted((call.address, call.address + call.nbytes, call.sends) for call in calls)
        end, sent_end = 0, 0  # of what is received so far, and of all
        for start, stop, sends in spans:
            if start < end or not sends and start < sent_end:
                raise Violation("what a group receives overlaps another message")
            end, sent_end = max(end, 0 if sends else stop), max(sent_end, stop)
        actions: list[Any] = []
        with self.wire.changed:
            for call in calls:
                self.vendor.touch(call.address, call.nbytes, "a message")
                if call.sends:
                    sent = _Sent(call.address, call.nbytes)
                    self.wire.sent[self.rank, call.peer].append(sent)
                    actions.append(sent.read)
                else:
                    actions.append(self._receive(call, self.received[call.peer]))
                    self.received[call.peer] += 1
            self.wire.changed.notify_all()
        self.module.groups += 1
        stream.arriving.append((self, actions))
        if not self.module.late:
            self.land(stream)

    def _receive(self, call: _Call, number: int) -> Any:
        sent = self.wire.sent[call.peer, self.rank]

        def receive() -> None:
            self.wire.until(lambda: len(sent) > number or self.aborted,
                            f"rank {self.rank} waits for message {number} of rank {call.peer}")
            if self.aborted:
                return
            if sent[number].nbytes != call.nbytes:
                raise Violation(f"{sent[number].nbytes} bytes were sent for {call.nbytes}")
            ctypes.memmove(call.address, sent[number].read(), call.nbytes)
        return receive

    @staticmethod
    def land(stream: FakeStream) -> None:
        """Let the messages of a stream take effect: its groups in their order, each group's messages in any."""
        while stream.arriving:
            group, actions = stream.arriving.pop(0)
            with group.wire.changed:
                if group.aborted:
                    continue
                for action in group.module.draw.sample(actions, len(actions)):
                    action()
