"""Records facts that a trace needs only to be run again: which tensors gradients save, until when, and ends of lineage.

A recorder is called after each call of an executor and compares the records of tensors with the earlier ones. It is
attached only in iterations whose traces are saved, and costs other iterations nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from weakref import ref

from minidl.memory.storage import Call, Storage
from minidl.plan.trace import TensorId, Trace, TraceTensor
from minidl.runtime import Runtime


class CallFactRecorder:
    """Records the facts that a trace lacks about the calls of an iteration: by position of the call."""

    def __init__(self, runtime: Runtime) -> None:
        self._memory, self._executor = runtime.memory, runtime.executor
        self._before = self._executor.inspect
        sequence = runtime.tracker.sequence  # of the last call before the first recorded iteration
        self._idle = {s.tensor_id: sequence - s.last_access for s in runtime.memory.live()
                      if s.persistent and s.last_access >= 0}
        self._iteration = -1
        self._forget()

    def _forget(self) -> None:
        self._saves: dict[int, tuple[TensorId, ...]] = {}
        self._takes: dict[int, list[int]] = {}
        self._leaves: dict[int, list[TensorId]] = {}
        self._long_lived: set[int] = set()
        self._keeping: dict[ref[Call], int] = {}  # calls that save tensors for their gradient
        self._growing: dict[ref[Storage], TensorId] = {}  # tensors with lineage

    def look(self, op: str, inputs: tuple[Storage, ...], results: tuple[Storage, ...]) -> None:
        """Record, after a call, the tensors that it saves for its gradient.

        Also record which tensors are no longer saved, and which have lost their lineage, since the call before.
        """
        if self._before is not None:
            self._before(op, inputs, results)
        tracker = self._executor.tracker
        if tracker.iteration != self._iteration:
            self._iteration = tracker.iteration
            self._forget()
        position = tracker.sequence - tracker.iteration_start
        self._note_what_ended(position)
        call = next((s.call for s in results if s.call is not None and s.call.sequence == self._executor.issued), None)
        if call is None:
            return
        if call.op.long_lived:
            self._long_lived.add(position)
        if call.saved:
            kept = [call.saved_storage(index) for index in call.saved]
            self._saves[position] = tuple(dict.fromkeys(s.base.tensor_id for s in kept if s is not None))
            self._keeping[ref(call)] = position
        for storage in results:
            if storage.call is call:
                self._growing[storage.me] = storage.tensor_id

    def _note_what_ended(self, position: int) -> None:
        for keeping, at in list(self._keeping.items()):
            call = keeping()
            if call is None or not call.saved:
                del self._keeping[keeping]
                self._takes.setdefault(position, []).append(at)
        for me, tensor_id in list(self._growing.items()):
            storage = me()
            if storage is None or storage.call is None:
                del self._growing[me]
                if storage is not None:
                    self._leaves.setdefault(position, []).append(tensor_id)

    def complete(self, trace: Trace) -> Trace:
        """Return the iteration's trace with the recorded facts and with all persistent tensors, used or not."""
        calls = tuple(
            replace(call, saves=self._saves.get(n, ()), takes=tuple(self._takes.get(n, ())),
                    leaves=tuple(self._leaves.get(n, ())), long_lived=n in self._long_lived)
            for n, call in enumerate(trace.calls))
        unused = {s.tensor_id: TraceTensor(s.tensor_id, s.nbytes, True) for s in self._memory.live()
                  if s.persistent and s.tensor_id not in trace.tensors}
        tensors = {i: replace(t, idle=self._idle.get(i, 0)) for i, t in (trace.tensors | unused).items()}
        return Trace(calls, tensors, trace.observed_seconds)


@contextmanager
def recording(runtime: Runtime) -> Iterator[CallFactRecorder]:
    """Yield a recorder of the iterations inside the ``with`` block.
    Call its ``complete`` with the trace of an iteration before the next one begins."""
    executor = runtime.executor
    recorder = CallFactRecorder(runtime)
    before, executor.inspect = executor.inspect, recorder.look
    try:
        yield recorder
    finally:
        executor.inspect = before
