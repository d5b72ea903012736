"""The lifetimes of a Trace's tensors: when each is made, used and freed, and the bytes in use during each call.

Calls are numbered 0..n-1. A tensor that no call makes exists before the iteration; one that no call frees outlives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minidl.meta import aligned, block_bytes
from minidl.plan.trace import TensorId, Trace

BEFORE = -1  # the maker of a tensor that exists when the iteration starts


@dataclass(frozen=True)
class Lifetimes:
    """The facts of one iteration, indexed by tensor.

    start_s     per call: its start in seconds from the iteration's start if nothing waits; one more entry, the end
    nbytes      tensor -> bytes it takes on the device (aligned)
    uses        tensor -> the calls that access it, the one that makes it first
    reads       per call: its distinct inputs
    made        tensor -> the call that makes it, or BEFORE
    freed       tensor -> the call after which it is freed, or the number of calls
    overwritten per call: the first later call that writes one of its inputs in place; a number beyond all calls if none
    live_bytes  per call: bytes on the device while it runs, without evictions. A donated input and the output over it
                count once; the smallest workspace of the call's algorithms is included.
    """

    trace: Trace
    start_s: list[float]
    nbytes: dict[TensorId, int]
    uses: dict[TensorId, list[int]]
    reads: list[tuple[TensorId, ...]]
    made: dict[TensorId, int]
    freed: dict[TensorId, int]
    overwritten: list[int] = field(default_factory=list)
    live_bytes: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace) -> Lifetimes:
        """Collect the lifetimes of a trace, in linear time."""
        facts = cls(trace, [0.0], {t.tensor_id: block_bytes(t.nbytes) for t in trace.tensors.values()},
                    {t: [] for t in trace.tensors}, [tuple(dict.fromkeys(call.inputs)) for call in trace.calls],
                    {}, {})
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
            for tensor_id in call.frees:
                self.freed[tensor_id] = k
        for tensor_id in self.nbytes:
            self.made.setdefault(tensor_id, BEFORE)
            self.freed.setdefault(tensor_id, len(self.trace.calls))
        never, written = len(self.trace.calls) + 1, dict[TensorId, int]()
        for k, call in reversed(list(enumerate(self.trace.calls))):
            self.overwritten.append(min((written.get(source, never) for source in self.reads[k]), default=never))
            written.update(dict.fromkeys(call.writes, k))
        self.overwritten.reverse()

    def _account(self) -> None:
        live = sum(self.nbytes[t] for t, made in self.made.items() if made == BEFORE)
        dying: dict[int, int] = {}
        for tensor_id, k in self.freed.items():
            dying[k] = dying.get(k, 0) + self.nbytes[tensor_id]
        for k, call in enumerate(self.trace.calls):
            live += sum(self.nbytes[t] for t in dict.fromkeys(call.outputs) if self.made[t] == k)
            # An input that was donated though it is used later was dropped for lack of memory: it still counts.
            donated = sum(self.nbytes[o] for o, i in call.donated if self.freed.get(i) == k)
            workspace = min((a.workspace for a in call.algorithms), default=0)
            self.live_bytes.append(live - donated + (aligned(workspace) if workspace else 0))
            live -= dying.get(k, 0)

    def gaps(self, tensor_id: TensorId) -> Iterator[tuple[int, int, int]]:
        """Yield the gaps of a tensor in which a plan may evict it, as three numbers.
        The numbers: of the access before the gap, from 1; of that access's call; of the next access's call."""
        calls = self.uses[tensor_id]
        for count, (before, after) in enumerate(zip(calls, calls[1:], strict=False), 1):
            if self.trace.may_leave(tensor_id, before, after):
                yield count, before, after

    def live_at(self, tensor_id: TensorId, call: int) -> bool:
        """True if a tensor is live while a call runs: made before it and freed with or after it."""
        return self.made[tensor_id] < call <= self.freed[tensor_id]
