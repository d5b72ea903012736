"""The lifetimes of a Trace's tensors: when each is used, made and freed, and the bytes live during each call.

Calls are numbered 0..n-1. A tensor that no call makes was there before the iteration; one that no call frees stays
after it. Knows no plan and no device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from minidl.meta import aligned, block_bytes
from minidl.plan.trace import TensorId, Trace

BEFORE = -1  # "made by" of a tensor that is there when the iteration starts


@dataclass(frozen=True)
class Lifetimes:
    """One iteration seen by tensor.

    start_s     per call: its start on the stall-free timeline, in seconds; one more entry, the end
    nbytes      tensor -> bytes it takes on the device (aligned)
    uses        tensor -> the calls that access it, the one that makes it first
    made        tensor -> the call that makes it, or BEFORE
    freed       tensor -> the call with which its bytes are given up, or the number of calls
    writes      tensor -> the calls that write it in place
    live_bytes  per call: bytes on the device while it runs, were nothing evicted. What an output takes over from an
                input that ends there counts once; the least workspace that the call can do with counts too.
    """

    trace: Trace
    start_s: list[float]
    nbytes: dict[TensorId, int]
    uses: dict[TensorId, list[int]]
    made: dict[TensorId, int]
    freed: dict[TensorId, int]
    writes: dict[TensorId, list[int]]
    live_bytes: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace) -> Lifetimes:
        """In time linear in the trace."""
        facts = cls(trace, [0.0], {t.tensor_id: block_bytes(t.nbytes) for t in trace.tensors.values()},
                    {t: [] for t in trace.tensors}, {}, {}, {})
        facts._collect()
        facts._account()
        return facts

    def _collect(self) -> None:
        for k, call in enumerate(self.trace.calls):
            self.start_s.append(self.start_s[-1] + call.seconds)
            for tensor_id in dict.fromkeys((*call.inputs, *call.outputs)):
                self.uses[tensor_id].append(k)
            for tensor_id in call.outputs:
                self.made.setdefault(tensor_id, k)
            for tensor_id in call.writes:
                self.writes.setdefault(tensor_id, []).append(k)
            for tensor_id in call.frees:
                self.freed[tensor_id] = k
        for tensor_id in self.nbytes:
            self.made.setdefault(tensor_id, BEFORE)
            self.freed.setdefault(tensor_id, len(self.trace.calls))

    def _account(self) -> None:
        live = sum(self.nbytes[t] for t, made in self.made.items() if made == BEFORE)
        dying: dict[int, int] = {}
        for tensor_id, k in self.freed.items():
            dying[k] = dying.get(k, 0) + self.nbytes[tensor_id]
        for k, call in enumerate(self.trace.calls):
            live += sum(self.nbytes[t] for t in dict.fromkeys(call.outputs) if self.made[t] == k)
            # An input that is written over though it is wanted again was given up for want of memory: it still counts.
            taken_over = sum(self.nbytes[o] for o, i in call.donated if self.freed.get(i) == k)
            workspace = min((a.workspace for a in call.algorithms), default=0)
            self.live_bytes.append(live - taken_over + (aligned(workspace) if workspace else 0))
            live -= dying.get(k, 0)

    def gaps(self, tensor_id: TensorId) -> Iterator[tuple[int, int, int]]:
        """The gaps between its accesses that a plan may use: the number of the access before each, from 1 on, and the
        calls before and after."""
        calls = self.uses[tensor_id]
        for count, (before, after) in enumerate(zip(calls, calls[1:], strict=False), 1):
            if self.trace.may_leave(tensor_id, before, after):
                yield count, before, after

    def live_at(self, tensor_id: TensorId, call: int) -> bool:
        """True if its bytes are wanted while a call runs."""
        return self.made[tensor_id] < call <= self.freed[tensor_id]

    def written_between(self, tensor_id: TensorId, after: int, until: int) -> bool:
        """True if it is written in place by a call in (after, until]."""
        writes = self.writes.get(tensor_id, ())
        first = bisect_right(writes, after)
        return first < len(writes) and writes[first] <= until
