"""The one place through which every operation of forward pass, backward pass and optimizer runs.

``run`` takes these steps: find the call's signature (shapes, algorithms); let a plan start prefetches; make the inputs
resident; place the outputs and launch; record the accesses; store the call as its outputs' lineage; let a plan evict.
It names no device, no policy, and no operation except the one that reads a value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from minidl.context import FREE
from minidl.device.signatures import Signatures
from minidl.errors import UserError
from minidl.memory.storage import IN, RECOMPUTE, Call, Keeper, Storage, TensorId, View
from minidl.memory.tracker import LONGEST
from minidl.memory.writing import refuse_to_write
from minidl.meta import Algorithm, Meta
from minidl.op import READ, Attrs, Op, Signature

if TYPE_CHECKING:
    import numpy as np

    from minidl.device.contract import Device
    from minidl.memory.manager import Memory
    from minidl.memory.tracker import Tracker
    from minidl.parts.keeper import PartKeeper
    from minidl.plan.trace import Trace

_requires_grad = attrgetter("requires_grad")


class Executor:
    """Runs calls on one device under one memory manager (in a dry run under a ledger, which only counts bytes).

    explicit_iterations  True if the program marks its iterations; otherwise one ends at the first call after an update
    ends_at_update       True if an iteration ends there although the program holds a result without its gradient taken
    part_keepers         the objects that run calls on sliced and sharded tensors; of several, the first runs a call
    issued               number of calls so far, views and in-place calls included; lineage is ordered by this number
    first_read           ``issued`` when the program first read a tensor's value; infinite before that
    inspect              if set: called as (name, inputs, results) after each call that makes no view; the results are
                         outputs, and inputs that were written in place"""

    def __init__(self, device: Device, memory: Memory, tracker: Tracker, *, deterministic: bool = True,
                 fuses: bool = True, keeps_outputs: bool = False, stands_for: tuple[Memory, ...] = ()) -> None:
        """deterministic: use only algorithms with equal bits. keeps_outputs: calls save all inputs and outputs.
        fuses: layers use fused operations, such as convolution with ReLU. stands_for: other memories whose tensors may
        be operands too, as those of a runtime in its dry run."""
        self.device, self.memory, self.tracker = device, memory, tracker
        self.keeper = memory.keeper
        self.keepers: tuple[Keeper, ...] = (memory.keeper, *[other.keeper for other in stands_for])
        self.part_keepers: tuple[PartKeeper, ...] = ()
        self.thread, self.entered = FREE, 0  # the thread inside, and how many times it has entered (``context``)
        self.deterministic, self.fuses, self.keeps_outputs = deterministic, fuses, keeps_outputs
        self.grad_enabled = True
        self.inspect: Callable[[str, tuple[Storage, ...], tuple[Storage, ...]], None] | None = None
        self.explicit_iterations = self.ends_at_update = False
        self.issued = 0
        self.first_read: float = inf
        self.signatures = Signatures(device, deterministic=deterministic, saves_all=keeps_outputs)
        self._known, self._saved = self.signatures.by_key, self.signatures.saved

    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, donated: int = 0) -> tuple[Storage, ...]:
        """Run one call and return its outputs; the caller makes a handle for each, or releases it.
        donated: bit i is set if input i's handle is used for the last time. Raises ShapeError for shapes or dtypes that
        do not fit, UserError for a write in place that loses a gradient, OutOfMemory, Unrecoverable for lost bytes, or
        the error of a kernel that refuses its values or cannot be compiled; then no call was made."""
        fixed = attrs.items() if not op.volatile else [item for item in attrs.items() if item[0] not in op.volatile]
        fields = [op, *fixed]
        for storage in inputs:  # a loop reads fields faster than ``map`` does: it is specialised for them
            fields.append(storage.meta)
        key = tuple(fields)
        signature = self._known.get(key)
        if fresh := signature is None:
            signature = self._sign(key, op, inputs, attrs)
        self.issued += 1
        if op.view:
            return self._view(signature, inputs, attrs)
        tracker, memory = self.tracker, self.memory
        hooks = memory.state.hooks
        if (tracker.updated and not op.update and not self.explicit_iterations
                and (self.ends_at_update or not memory.goes_on())):
            self.end_iteration()
        if hooks.due:
            hooks.before_call()
        written: Sequence[Storage] = ()
        if op.mutates is not None:
            targets = [inputs[i] for i in op.mutates(len(inputs))]
            written = targets if View not in map(type, targets) else [storage.base for storage in targets]
        try:
            if written:
                refuse_to_write(op, inputs, targets, differentiates=self.grad_enabled)
                memory.before_write(written, inputs)
            for storage in inputs:
                if storage.status is not IN:
                    memory.make_resident(inputs, op.name)
                    break
        except BaseException:
            self._call_off(key, inputs, (), fresh=fresh)
            raise
        needs: tuple[bool, ...] = ()
        saved: tuple[int, ...] = ()
        if self.grad_enabled and op.vjp is not None:
            needs = tuple(map(_requires_grad, inputs))
            if True in needs:
                known = self._saved.get((signature, needs))
                saved = known if known is not None else self.signatures.saves(signature, attrs, needs)
            else:
                needs = ()
        tracker.sequence += 1
        tensor_id = tracker.temporaries
        outputs: tuple[Storage, ...] = ()
        for meta in signature.outputs:
            outputs += (Storage(meta, self.keeper, tensor_id),)
            tensor_id += 1
        tracker.temporaries = tensor_id
        try:
            algorithm = memory.runner.run(signature, attrs, inputs, outputs, donated, saved, tracker.durations.append)
            if op.checks or fresh:  # the first call of its kind may meet a kernel that cannot be compiled
                self.device.confirm()
        except BaseException:
            self._call_off(key, inputs, outputs, fresh=fresh)
            tracker.cancel({storage.tensor_id for storage in outputs})
            raise
        read, made = self.record_tensor_access(signature, algorithm, inputs, outputs)
        if written:
            for storage in written:
                if storage.requires_grad:
                    storage.sever()
            memory.after_write(written, self.issued)
            tracker.updated |= op.update
        elif not op.makes_leaves:
            refs: tuple[weakref.ref[Storage], ...] = ()
            for storage in outputs:
                refs += (storage.me,)
            call = Call(op, inputs, attrs, refs, self.issued, signature)
            for storage in outputs:
                storage.call = call
            if needs:
                call.save(outputs, needs, saved)
        if self.inspect is not None:
            self.inspect(op.name, inputs, (*outputs, *(targets if written else ())))
        if hooks.follows:
            hooks.after_call(signature, read, made, inputs + outputs)
        return outputs

    def record_tensor_access(self, signature: Signature, algorithm: Algorithm, inputs: Sequence[Storage],
                             outputs: Sequence[Storage]) -> tuple[tuple[TensorId, ...], tuple[TensorId, ...]]:
        """Record a call and an access of each tensor in it; return the ids of those it reads, and of those it makes.
        Capuchin calls this RecordTensorAccess (section 5.1)."""
        tracker = self.tracker
        sequence, start = tracker.sequence, tracker.iteration_start
        read = []
        for base in inputs:
            if type(base) is View:  # a test of the type is faster than the property ``base`` of every operand
                base = base.base
                tracker.base_bytes[base.tensor_id] = base.nbytes
            read.append(base.tensor_id)
            last = base.last_access
            if last != sequence:  # a tensor that one call uses twice is accessed once
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
        if tracker.keep_log:
            tracker.log.append((signature, algorithm, *ids))
            if len(tracker.log) > LONGEST:
                tracker.give_up_log()
        return ids

    def _sign(self, key: tuple[Any, ...], op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> Signature:
        """Make and keep the signature of a call that has none yet. Raises WrongKind for an attribute that is a tensor.
        """
        op.refuse_tensors(attrs)
        if len(self._known) >= self.signatures.most:
            self.signatures.forget(self.memory.state.hooks.signatures())
        return self.signatures.add(key, op, tuple([s.meta for s in inputs]), attrs)

    def _view(self, signature: Signature, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
        output = View(signature.outputs[0], inputs[0].base)
        call = output.call = Call(signature.op, inputs, attrs, (output.me,), self.issued, signature)
        if self.grad_enabled and (needs := signature.op.needs(inputs)):
            call.save((output,), needs, self.signatures.saves(signature, attrs, needs))
        return (output,)

    def _call_off(self, key: tuple[Any, ...], inputs: Sequence[Storage], outputs: Sequence[Storage], *,
                  fresh: bool) -> None:
        """Undo what was prepared for a call that has failed. fresh: it was the first of its kind; forget its signature.
        """
        self.memory.call_off(inputs, outputs)
        if fresh:
            self._known.pop(key, None)

    def stranger(self, op_name: str, storage: Storage) -> UserError:
        """Return the error to raise for an operand that belongs to another runtime."""
        return UserError(f"{op_name}: {storage.named()} belongs to another runtime than the current one on "
                         f"{self.device.name}: bring it here with runtime.tensor(x.numpy())")

    def finish(self) -> None:
        """Wait until all kernels have ended; raise an error that has ended the device and was not raised yet."""
        self.device.finish()

    # Values and leaves ---------------------------------------------------------------------------------------
    def read(self, storage: Storage) -> np.ndarray:
        """Return a host copy of a tensor's value; waits for the device. Raises the errors of ``look``."""
        value: np.ndarray = self.look(storage, self.device.read)
        return value

    def look(self, storage: Storage, how: Callable[[Storage], Any]) -> Any:
        """Return ``how(storage)``, a view or copy of a value, after all calls so far; the access is recorded.
        how: the device's method ``read``, ``share`` or ``interface``. Raises UserError for another runtime's tensor,
        OutOfMemory if an evicted one finds no room, Unrecoverable if its bytes are lost."""
        keeper = storage.keeper
        if keeper in self.part_keepers:
            return keeper.look(storage, lambda part: self.look(part, how), joined=how != self.device.read)
        if keeper not in self.keepers:
            raise self.stranger(READ.name, storage)
        key = (READ, storage.meta)
        signature = self._known.get(key) or self._sign(key, READ, (storage,), {})
        self.first_read = min(self.first_read, self.issued)
        self.memory.make_resident((storage,), READ.name)
        self.tracker.sequence += 1
        read, made = self.record_tensor_access(signature, signature.algorithms[0], (storage,), ())
        self.memory.state.hooks.after_call(signature, read, made, ())
        try:
            return how(storage)
        finally:
            self.tracker.durations.append(signature.algorithms[0].seconds)  # after those of all that it waited for

    def leaf(self, meta: Meta, *, persistent: bool) -> Storage:
        """Make a leaf with uninitialised bytes on the device. Raises OutOfMemory."""
        tracker = self.tracker
        storage = Storage(self.device.lay_out_leaf(meta), self.keeper,
                          tracker.persistent_id() if persistent else tracker.temporary_id())
        storage.persistent = persistent
        self.memory.runner.place_leaf(storage)
        return storage

    def make_leaf(self, storage: Storage) -> None:
        """Make a storage a leaf: recompute it if it was dropped, and cut its lineage. It then keeps its bytes."""
        keeper = storage.keeper
        if keeper in self.part_keepers:
            return keeper.make_leaf(storage)
        if storage.status is RECOMPUTE:
            self.memory.replay(storage.base)
        self.tracker.cut(storage)
        storage.call = storage.severed = None

    # Iterations ----------------------------------------------------------------------------------------------
    def end_iteration(self, *, failed: bool = False) -> None:
        """End an iteration: recompute dropped survivors (unless ``failed``), cut all lineage, restart counts."""
        for keeper in self.part_keepers:
            keeper.end_iteration(failed=failed)
        hooks = self.memory.state.hooks
        hooks.end_iteration(self.trace, failed=failed)
        self.memory.end_iteration(failed=failed)
        self.device.end_iteration()
        self.tracker.end_iteration()
        hooks.start()

    def trace(self) -> Trace:
        """Return the trace of the iteration so far; waits until the durations of all calls are known."""
        self.device.settle()
        return self.tracker.trace()
