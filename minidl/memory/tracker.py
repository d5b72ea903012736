"""The log of an iteration: the executor writes each call to it, and ``Tracker.trace`` builds a Trace from it.

``Executor.record_tensor_access`` appends to ``log``; the device appends the duration of each call to ``durations``.
On-demand memory needs only the first and the last access of each tensor, which are in its Storage. Decides nothing.
"""

from collections import deque
from collections.abc import Callable, Set

from minidl.errors import UserError
from minidl.memory.storage import Storage, TensorId
from minidl.meta import Algorithm
from minidl.op import Signature
from minidl.plan.trace import Trace, TraceCall, TraceTensor, scaled

LONGEST = 100_000  # calls of an iteration that the log holds; a longer iteration has no trace
SURVIVOR_STEP = 1 << 40  # ids of tensors that outlive their iteration: their old id plus a multiple of this
GRADIENT_ID = 1 << 62  # minus a parameter's id: the id of its gradient, once that has outlived an iteration

Durations = list[float] | deque[float]


class Tracker:
    """Sequence numbers, tensor ids, and the log of the current iteration.

    sequence         number of the last call. It never restarts, so numbers compare across iterations
    iteration        how many iterations have ended
    iteration_start  the number of this iteration's first call
    updated          True once an optimizer's step has run in this iteration
    keep_log         False while a replay runs: its calls are not logged, as the program did not ask for them
    too_long         True if this iteration has more than LONGEST calls; then its log is empty
    temporaries      how many temporary ids this iteration has given out, which is also the next one
    log              the calls of this iteration: (signature, algorithm, ids of tensors read, ids of tensors made)
    durations        device seconds of these calls, for the first ones that have finished
    base_bytes       bytes of each base that was read through a view (a view's size may differ from its base's)"""

    def __init__(self) -> None:
        self.sequence = 0
        self.iteration = 0
        self.iteration_start = 1
        self.updated = False
        self.keep_log = True
        self.too_long = False
        self.temporaries = 0
        self.log: list[tuple[Signature, Algorithm, tuple[TensorId, ...], tuple[TensorId, ...]]] = []
        self.durations: Durations = []
        self.base_bytes: dict[TensorId, int] = {}
        self._next_persistent = -1
        self._frees: list[tuple[int, TensorId, int]] = []
        self._donations: dict[int, tuple[tuple[TensorId, TensorId], ...]] = {}
        self._leaves: dict[int, tuple[TensorId, ...]] = {}

    # Identity ------------------------------------------------------------------------------------------------
    def temporary_id(self) -> TensorId:
        """A new id, 0, 1, 2, ... in each iteration: the same tensor of each iteration gets the same id."""
        tensor_id = self.temporaries
        self.temporaries = tensor_id + 1
        return tensor_id

    def persistent_id(self) -> TensorId:
        """A new id for a parameter, a buffer or optimizer state: negative, and never given out again."""
        self._next_persistent -= 1
        return self._next_persistent + 1

    # The log -------------------------------------------------------------------------------------------------
    def cancel(self, made: Set[TensorId]) -> None:
        """Take back the number of the current call, as the call was not made. made: the ids of its outputs."""
        self._donations.pop(self.sequence, None)
        self._frees = [free for free in self._frees if free[1] not in made]
        if isinstance(self.durations, list):
            del self.durations[self.sequence - self.iteration_start:]  # that of a kernel which refused its values
        self.sequence -= 1

    def donated(self, output: TensorId, origin: TensorId) -> None:
        """Note that the input ``origin`` of the current call has donated its bytes to the output ``output``."""
        if self.keep_log:
            self._donations[self.sequence] = (*self._donations.get(self.sequence, ()), (output, origin))

    def freed(self, storage: Storage) -> None:
        """Log that a tensor's bytes have no use any more after the current call."""
        if self.keep_log:
            self._frees.append((self.sequence, storage.tensor_id, storage.nbytes))

    def cut(self, storage: Storage) -> None:
        """Log that a tensor's lineage ends before the next call."""
        if self.keep_log and storage.base is storage and storage.call is not None:
            self._leaves[self.sequence + 1] = (*self._leaves.get(self.sequence + 1, ()), storage.tensor_id)

    def give_up_log(self) -> None:
        """Empty the log, as the iteration is too long for one, and log no more of it."""
        self.too_long, self.keep_log = True, False
        self._clear()
        self.durations = deque(maxlen=0)

    def end_iteration(self) -> None:
        """Restart access counts, temporary ids and the log."""
        self.iteration += 1
        self.iteration_start = self.sequence + 1
        self.updated = self.too_long = False
        self.keep_log = True
        self.durations = []  # a new list: calls that still run append to the old one
        self.temporaries = 0
        self._clear()

    def _clear(self) -> None:
        self.log.clear()
        self._frees.clear()
        self.base_bytes.clear()
        self._donations.clear()
        self._leaves.clear()

    # Reading it ----------------------------------------------------------------------------------------------
    def time_of(self, sequence: int) -> float:
        """When call number ``sequence`` began: seconds from the iteration's start, without stalls.
        0 for a call of an earlier iteration, or if this iteration is too long for the log."""
        if not isinstance(self.durations, list):
            return 0.0
        count = max(0, sequence - self.iteration_start)
        known = self.durations[:count]
        return sum(known) + sum(algorithm.seconds for _, algorithm, _, _ in self.log[len(known):count])

    def trace(self, persistent: Callable[[TensorId], bool] = lambda tensor_id: tensor_id < 0) -> Trace:
        """The trace of the iteration so far. A call that still runs counts with its modelled duration.
        persistent: whether a tensor id is one of a persistent tensor. The seconds of a call's other algorithms are its
        measured seconds times their modelled ratio to it. Raises UserError if the iteration is too long for the log."""
        if self.too_long:
            raise UserError(f"this iteration has made more than {LONGEST} calls, and has no trace: mark iterations by "
                            "runtime.iteration()")
        frees: dict[int, list[TensorId]] = {}
        tensors: dict[TensorId, TraceTensor] = {}
        for sequence, tensor_id, nbytes in self._frees:
            if sequence < self.iteration_start or tensor_id in tensors:
                continue  # freed before the first call; or noted already at its last use, before its bytes were freed
            frees.setdefault(sequence, []).append(tensor_id)
            tensors[tensor_id] = TraceTensor(tensor_id, nbytes, persistent(tensor_id))
        calls = []
        durations = list(self.durations)
        for number, (signature, algorithm, inputs, outputs) in enumerate(self.log):
            seconds = durations[number] if number < len(durations) else algorithm.seconds
            sequence = self.iteration_start + number
            for ids, sizes in ((inputs, signature.input_bytes), (outputs, signature.output_bytes)):
                for tensor_id, nbytes in zip(ids, sizes, strict=True):
                    nbytes = self.base_bytes.get(tensor_id, nbytes)
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
                writes=tuple(inputs[i] for i in written), replayable=op.replayable and op.mutates is None,
                leaves=self._leaves.get(sequence, ())))
        return Trace(tuple(calls), tensors)
