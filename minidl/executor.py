"""The one choke point: every operation, forward, backward and optimizer, runs here.

A call is carried out in this order: its signature (shapes, algorithms) is looked up; what a plan wants back before it
is prefetched; what is still to be computed from bytes that it will write over is computed; its inputs are made
resident; its outputs are placed and it is launched; its accesses are recorded; its record becomes its outputs'
lineage; what a plan wants after it is done. Names no device, no policy, and no operation but the one that reads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

from minidl.context import NOBODY
from minidl.memory.storage import IN, RECOMPUTE, Call, Storage, View, me_of, meta_of
from minidl.meta import Meta
from minidl.op import READ, Attrs, Op, Signature
from minidl.saved_tensors import keep, needs_of, refuse_to_write, stranger

if TYPE_CHECKING:
    import numpy as np

    from minidl.device.contract import Device
    from minidl.memory.manager import Memory
    from minidl.memory.tracker import Tracker
    from minidl.parts.sharding.seam import Sharding
    from minidl.parts.slicing.seam import Slicing
    from minidl.plan.trace import Trace

SIGNATURES = 1 << 14  # that are remembered, at least: some 2 KiB each


class Executor:
    """Runs calls on one device under one memory manager (or a ledger, which only counts)."""

    def __init__(self, device: Device, memory: Memory, tracker: Tracker, *, deterministic: bool = True,
                 fuses: bool = True, keeps_outputs: bool = False, stands_for: tuple[Memory, ...] = ()) -> None:
        """keeps_outputs: calls keep all they read and make for their gradients. ``stands_for``: whose tensors are
        operands here, too: those of the runtime that a dry run is of."""
        self.device, self.memory = device, memory
        self.memories = (memory, *stands_for)
        self.failures = device.failures  # of kernels, which may have run long after their call
        self.thread, self.entered = NOBODY, 0  # that is inside, and how many times (``context``)
        self.tracker, self.deterministic = tracker, deterministic
        self.fuses, self.keeps_outputs = fuses, keeps_outputs  # operations that have a fused form use it
        self.grad_enabled = True
        self.slicer: Slicing | None = None  # runs operations on tensors that are in slices
        self.sharder: Sharding | None = None  # and this one on those in shards
        # Is shown every result when it is made: name of the operation, inputs, what it wrote.
        self.inspect: Callable[[str, tuple[Storage, ...], tuple[Storage, ...]], None] | None = None
        self.explicit_iterations = False  # the program marks its iterations itself
        self.issued = 0  # calls so far, views and in-place ones included: what "before" means for lineage
        self.first_read: float = inf  # how many calls there were when a value was first read
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        self._most_signatures = SIGNATURES
        self._saved: dict[tuple[Signature, tuple[bool, ...]], tuple[int, ...]] = {}

    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, given: int = 0) -> tuple[Storage, ...]:
        """Carry out one call; each storage returned counts one use, which the caller takes over.

        given: bit i says that input i's handle is used for the last time. Raises ShapeError, OutOfMemory.
        """
        if self.failures:
            self.fail()
        fixed = attrs.items() if not op.volatile else [item for item in attrs.items() if item[0] not in op.volatile]
        key = (op, *fixed, *map(meta_of, inputs))
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = self._sign(op, tuple([s.meta for s in inputs]), attrs)
        self.issued += 1
        if op.view:
            return self._view(signature, inputs, attrs)
        tracker, memory = self.tracker, self.memory
        hooks = memory.hooks
        if (tracker.updated and not op.update and not self.explicit_iterations
                and (self.slicer is not None or not memory.goes_on())):
            self.end_iteration()
        if hooks.due:
            hooks.before_call()
        written = [inputs[i] for i in op.mutates(len(inputs))] if op.mutates is not None else ()
        try:
            if written:
                refuse_to_write(op, inputs, written, differentiates=self.grad_enabled)
                memory.before_write(written)
            for storage in inputs:
                if storage.status is not IN:
                    memory.make_resident(inputs, op.name)
                    break
        except BaseException:
            memory.call_off()
            raise
        needs = needs_of(op, inputs) if self.grad_enabled else ()
        saved = self._saves(signature, attrs, needs) if needs else ()
        tensor_id = tracker.begin(len(signature.outputs))
        outputs: tuple[Storage, ...] = ()
        for meta in signature.outputs:
            outputs += (Storage(meta, memory, tensor_id),)
            tensor_id += 1
        try:
            algorithm = memory.run(signature, attrs, inputs, outputs, given, saved, tracker.durations.append)
        except BaseException:
            tracker.cancel()
            memory.call_off()
            if self.failures:
                self.fail()
            raise
        read, made = tracker.record_tensor_access(signature, algorithm, inputs, outputs)
        if written:
            for storage in written:
                if storage.base.requires_grad:
                    storage.base.sever()
            memory.after_write(written, self.issued)
            tracker.updated |= op.update
        elif op.replayable:
            call = Call(op, inputs, attrs, tuple(map(me_of, outputs)), self.issued, signature)
            for storage in outputs:
                storage.call = call
            if needs:
                keep(call, outputs, needs, saved)
        if self.inspect is not None:
            self.inspect(op.name, inputs, (*outputs, *written))
        hooks.after_call(signature, read, made, inputs + outputs)
        return outputs

    def go_on(self) -> None:
        """Let the iteration go on after an update, which is not the last of its optimizer's step."""
        self.tracker.updated = False

    def _sign(self, op: Op, metas: tuple[Meta, ...], attrs: Attrs) -> Signature:
        """What the operation and the device say of a call that is like none before, or none that is remembered."""
        if len(self._signatures) >= self._most_signatures:
            self._forget_signatures()
        outputs = op.describe(metas, attrs)
        if op.view:
            return Signature(op, metas, outputs, ())
        outputs = self.device.lay_out(op.name, metas, outputs)
        cost = op.cost(metas, outputs, attrs)
        found = self.device.algorithms(op.name, metas, outputs, attrs, cost)
        algorithms = tuple(a for a in found if not self.deterministic or a.bits_class == found[0].bits_class)
        return Signature(op, metas, outputs, tuple(sorted(algorithms, key=lambda a: (a.seconds, a.workspace))),
                         cost.flops)

    def _forget_signatures(self) -> None:
        """Keep those alone that known sequences name: a program's shapes may never come again."""
        known = set(self.memory.hooks.signatures())
        self._signatures = {key: signature for key, signature in self._signatures.items() if signature in known}
        self._saved = {key: saved for key, saved in self._saved.items() if key[0] in known}
        self._most_signatures = max(SIGNATURES, 2 * len(self._signatures))

    def _saves(self, signature: Signature, attrs: Attrs, needs: tuple[bool, ...]) -> tuple[int, ...]:
        """Which of inputs + outputs the call keeps for its gradient."""
        saved = self._saved.get((signature, needs))
        if saved is None:
            saved = self._saved[signature, needs] = (
                tuple(range(len(signature.inputs) + len(signature.outputs))) if self.keeps_outputs else
                signature.op.saved_indices(attrs, needs, len(signature.inputs)))
        return saved

    def _view(self, signature: Signature, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
        output = View(signature.outputs[0], inputs[0].base)
        call = output.call = Call(signature.op, inputs, attrs, (output.me,), self.issued, signature)
        needs = needs_of(signature.op, inputs) if self.grad_enabled else ()
        if needs:
            keep(call, (output,), needs, self._saves(signature, attrs, needs))
        return (output,)

    def fail(self) -> NoReturn:
        """Raise the first error of a kernel that nobody has seen yet. What the calls that failed, and those that needed
        their results, should have made has no value from now on; everything else is as it was."""
        error = self.failures[0].error
        self.lose()
        try:
            raise error
        finally:
            del error  # or its traceback would hold this frame, which holds it: tensors would live as long as both

    def finish(self) -> None:
        """Raise the error of a kernel that nobody has seen, once all of them are over."""
        self.device.finish()
        if self.failures:
            self.fail()

    def lose(self) -> None:
        """Take what has failed off the memory, if anything has, once all that was launched is over."""
        if self.failures:
            for stream, position in enumerate(self.device.positions):
                self.device.synchronize(stream, position)
            self.memory.lose(tuple(self.failures))
            self.device.forgive()

    def read(self, storage: Storage) -> np.ndarray:
        """A host copy of a value; waits for the device. Raises OutOfMemory, Unrecoverable."""
        value: np.ndarray = self._look(storage, self.device.read)
        return value

    def share(self, storage: Storage) -> Any:
        """A copy of a value where it is, for another library; waits for the device. Raises as ``read``."""
        return self._look(storage, self.device.share)

    def interface(self, storage: Storage) -> dict[str, Any]:
        """Where a value lies, as ``Device.interface`` says it; waits for the device. Raises as ``read``."""
        described: dict[str, Any] = self._look(storage, self.device.interface)
        return described

    def _look(self, storage: Storage, how: Callable[[Storage], Any]) -> Any:
        """One access from outside, after all calls so far."""
        for keeper in (self.slicer, self.sharder):
            if keeper is not None and storage.memory is keeper:
                return keeper.look(storage, lambda part: self._look(part, how), joined=how != self.device.read)
        if storage.memory not in self.memories:
            raise stranger(READ.name, storage, self.device.name)
        if (key := (READ, storage.meta)) not in self._signatures:
            self._signatures[key] = self._sign(READ, (storage.meta,), {})
        signature = self._signatures[key]
        self.first_read = min(self.first_read, self.issued)
        self.memory.make_resident((storage,), READ.name)
        self.tracker.begin()
        read, made = self.tracker.record_tensor_access(signature, signature.algorithms[0], (storage,), ())
        self.memory.hooks.after_call(signature, read, made, ())
        try:
            value = how(storage)
        except Exception:
            if self.failures:
                self.fail()
            raise
        self.tracker.durations.append(signature.algorithms[0].seconds)  # after those of all that it waited for
        return value

    def leaf(self, meta: Meta, *, persistent: bool) -> Storage:
        """An uninitialised leaf with bytes of its own. Raises OutOfMemory."""
        tracker = self.tracker
        storage = Storage(self.device.lay_out_leaf(meta), self.memory,
                          tracker.persistent_id() if persistent else tracker.temporary_id())
        storage.persistent = persistent
        self.memory.place_leaf(storage)
        return storage

    def make_leaf(self, storage: Storage) -> None:
        """Cut a storage's lineage: from now on it keeps its bytes, and pins nothing that it was computed from."""
        for keeper in (self.slicer, self.sharder):
            if keeper is not None and storage.memory is keeper:
                return keeper.make_leaf(storage)
        if storage.status is RECOMPUTE:
            self.memory.replay(storage.base)
        storage.call = storage.severed = None

    def begin_iteration(self) -> None:
        """The program begins an iteration; time since the last one belongs to neither."""
        self.memory.hooks.begin_iteration()

    def end_iteration(self, *, failed: bool = False) -> None:
        """The boundary: survivors are made real (unless the iteration failed), lineage is cut, counts restart.

        Raises a kernel's error that nobody has seen yet: then the iteration has failed, and ends as such.
        """
        if self.slicer is not None:
            self.slicer.end_iteration(failed=failed)
        if failed:
            self.device.finish()  # what fails of it later on is no other iteration's
            self.lose()
        if not self.failures:
            return self._end_iteration(failed=failed)
        try:
            self.fail()
        finally:
            self._end_iteration(failed=True)

    def _end_iteration(self, *, failed: bool) -> None:
        hooks = self.memory.hooks
        hooks.end_iteration(self.trace, failed=failed)
        self.memory.end_iteration(failed=failed)
        self.device.end_iteration()
        self.tracker.end_iteration()
        hooks.start()

    def trace(self) -> Trace:
        """The iteration so far, with durations that are all known."""
        self.device.settle()
        return self.tracker.trace()
