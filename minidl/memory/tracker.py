"""Records every tensor access of an iteration, in the executor's hot path. Decides nothing.

``begin`` opens a call and numbers it; ``record_tensor_access`` notes it with its accesses; ``freed`` notes a tensor's
end; the device appends to ``durations`` what each call took. From these a Trace is built when somebody asks. On-demand
paging needs the access list only as each storage's first and last access, which are kept in its record. An iteration
that nothing ends is forgotten when it is too long, and has no trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from minidl.errors import UserError
from minidl.memory.storage import Storage, TensorId, View
from minidl.meta import Algorithm
from minidl.op import Signature
from minidl.plan.trace import Trace, TraceCall, TraceTensor, scaled

LONGEST = 100_000  # calls of an iteration that are noted
SURVIVOR_STEP = 1 << 40  # a tensor that outlives its iteration keeps its id from then on: a multiple of this more
GRADIENT_ID = 1 << 62  # less a parameter's id: its gradient, once that has outlived the iteration that made it


Durations = list[float] | deque[float]


class Tracker:
    """Sequence numbers, tensor ids, access counts, and the log of the current iteration."""

    def __init__(self) -> None:
        self.sequence = 0  # of the last call; never restarts, so "before" and "after" compare across iterations
        self.iteration = 0
        self.iteration_start = 1  # the first call of this iteration
        self.updated = False  # an optimizer step was seen in this iteration
        self.keep_log = True  # off during replays, which no program asked for
        self.too_long = False  # this iteration was: what was noted of it is forgotten
        self.durations: Durations = []  # device seconds of the calls in the log, as far as they are known yet
        self._next_temporary = 0
        self._next_persistent = -1
        self._log: list[tuple[Signature, Algorithm, tuple[TensorId, ...], tuple[TensorId, ...]]] = []
        self._frees: list[tuple[int, TensorId, int]] = []
        self._bases: dict[TensorId, int] = {}  # bytes of what was read through a view, which has fewer or more
        self._donations: dict[int, tuple[tuple[TensorId, TensorId], ...]] = {}

    # Identity ------------------------------------------------------------------------------------------------
    def temporary_id(self) -> TensorId:
        """By position in the iteration, so that it is the same in every iteration."""
        tensor_id = self._next_temporary
        self._next_temporary = tensor_id + 1
        return tensor_id

    @property
    def temporaries(self) -> int:
        """How many temporary ids this iteration has given out: the next one."""
        return self._next_temporary

    def persistent_id(self) -> TensorId:
        """For parameters, buffers and optimizer state: negative, given once."""
        self._next_persistent -= 1
        return self._next_persistent + 1

    # The hot path --------------------------------------------------------------------------------------------
    def begin(self, outputs: int = 0) -> TensorId:
        """Number the next call, and so many outputs of it; returns the first one's id."""
        self.sequence += 1
        tensor_id = self._next_temporary
        self._next_temporary = tensor_id + outputs
        return tensor_id

    def cancel(self) -> None:
        """The call that was begun could not be placed: it never happened."""
        self._donations.pop(self.sequence, None)
        self.sequence -= 1

    def record_tensor_access(self, signature: Signature, algorithm: Algorithm, inputs: Sequence[Storage],
                             outputs: Sequence[Storage]) -> tuple[tuple[TensorId, ...], tuple[TensorId, ...]]:
        """Note a call, and one access of each tensor that it reads or makes; returns their ids (RecordTensorAccess in
        Capuchin, section 5.1)."""
        sequence, start = self.sequence, self.iteration_start
        read = []
        for base in inputs:
            if type(base) is View:  # asked like this, as it is asked of every operand: a property takes longer
                base = base.base
                self._bases[base.tensor_id] = base.nbytes
            read.append(base.tensor_id)
            last = base.last_access
            if last != sequence:  # a tensor that is used twice by one call is accessed once
                if last < start:
                    base.access_count = 1
                    base.first_access = sequence
                else:
                    base.access_count += 1
                base.last_access = sequence
        made: tuple[TensorId, ...] = ()
        for storage in outputs:
            made += (storage.tensor_id,)
            storage.access_count = 1
            storage.first_access = storage.last_access = sequence
        ids = tuple(read), made
        if self.keep_log:
            self._log.append((signature, algorithm, *ids))
            if len(self._log) > LONGEST:
                self.too_long, self.keep_log = True, False
                self._forget()
                self.durations = deque(maxlen=0)  # keeps none of those that are still to come
        return ids

    def donated(self, output: TensorId, origin: TensorId) -> None:
        """An output of the current call took over an input's bytes."""
        if self.keep_log:
            self._donations[self.sequence] = (*self._donations.get(self.sequence, ()), (output, origin))

    def freed(self, storage: Storage) -> None:
        """A tensor's bytes are no longer wanted by anyone."""
        if self.keep_log:
            self._frees.append((self.sequence, storage.tensor_id, storage.nbytes))

    # Iterations ----------------------------------------------------------------------------------------------
    def end_iteration(self) -> None:
        """Access counts, temporary ids and the log start again."""
        self.iteration += 1
        self.iteration_start = self.sequence + 1
        self.updated = self.too_long = False
        self.keep_log = True
        self.durations = []  # a new one: what is still running belongs to the old
        self._next_temporary = 0
        self._forget()

    def _forget(self) -> None:
        self._log.clear()
        self._frees.clear()
        self._bases.clear()
        self._donations.clear()

    def time_of(self, sequence: int) -> float:
        """Start of a call of this iteration on the stall-free timeline, in seconds; of an earlier one, or in an
        iteration that was too long to be noted: 0."""
        if not isinstance(self.durations, list):
            return 0.0
        count = max(0, sequence - self.iteration_start)
        known = self.durations[:count]
        return sum(known) + sum(algorithm.seconds for _, algorithm, _, _ in self._log[len(known):count])

    def trace(self, persistent: Callable[[TensorId], bool] = lambda tensor_id: tensor_id < 0) -> Trace:
        """The iteration so far. A call that the device has not finished yet counts with its modelled duration.

        Alternatives to the algorithm that ran are taken to keep their modelled ratio to it. Raises UserError if the
        iteration was too long to be noted.
        """
        if self.too_long:
            raise UserError(f"this iteration has made more than {LONGEST} calls, and has no trace: mark iterations by "
                            "runtime.iteration()")
        frees: dict[int, list[TensorId]] = {}
        tensors: dict[TensorId, TraceTensor] = {}
        for sequence, tensor_id, nbytes in self._frees:
            if sequence < self.iteration_start or tensor_id in tensors:
                continue  # before the first call it took no part; bytes may outlast their last use, which counts
            frees.setdefault(sequence, []).append(tensor_id)
            tensors[tensor_id] = TraceTensor(tensor_id, nbytes, persistent(tensor_id))
        calls = []
        durations = list(self.durations)
        for number, (signature, algorithm, inputs, outputs) in enumerate(self._log):
            seconds = durations[number] if number < len(durations) else algorithm.seconds
            sequence = self.iteration_start + number
            for ids, sizes in ((inputs, signature.input_bytes), (outputs, signature.output_bytes)):
                for tensor_id, nbytes in zip(ids, sizes, strict=True):
                    nbytes = self._bases.get(tensor_id, nbytes)
                    tensors[tensor_id] = TraceTensor(tensor_id, nbytes, persistent(tensor_id))
            op = signature.op
            written = op.mutates(len(inputs)) if op.mutates is not None else ()
            calls.append(TraceCall(
                op.name, inputs, outputs, seconds,
                scaled(signature.algorithms, seconds / algorithm.seconds if algorithm.seconds else 1.0),
                frees=tuple(frees.get(sequence, ())), donated=self._donations.get(sequence, ()),
                may_donate=tuple((outputs[o], inputs[i]) for o, i in signature.donates
                                 if signature.output_bytes[o] == tensors[inputs[i]].nbytes
                                 and inputs.count(inputs[i]) == 1),
                writes=tuple(inputs[i] for i in written), replayable=op.replayable and op.mutates is None))
        return Trace(tuple(calls), tensors)
