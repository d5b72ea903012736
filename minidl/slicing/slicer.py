"""Runs operations on tensors that are in slices along their batch: the rewrite between an operation and the executor.

An operation with an operand in slices becomes one call a slice, of the same operation, on parts that are ordinary
storages: tracker, planner, swapping and replay see a longer trace, and know of no slices. Calls wait in a queue until
somebody needs a value of the whole batch; then the queue is carried out for one slice after the other. So what lies
between two such values (statistics, losses, updates, values that are read) goes depth first, and its intermediate
results live one slice at a time.

Gradients are those of the program's own operations on whole tensors: formulas run here like everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np

from minidl.errors import UserError
from minidl.graph import keep, needs_of, refuse_to_lose_gradients
from minidl.memory.storage import Call, Storage
from minidl.meta import DType, Meta, Shape, meta
from minidl.op import Attrs, Op, Signature
from minidl.ops.elementwise import SCALE
from minidl.ops.shape import CONCAT, NARROW
from minidl.ops.update import UPLOAD
from minidl.slicing.logical import Logical
from minidl.slicing.rules import Rule, scaled

if TYPE_CHECKING:
    from minidl.executor import Executor

WHOLE_BYTES = 1 << 16  # up to which a batch is uploaded in one piece, and its slices are views of it


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """One operation that waits: its operands (slices, and storages that every slice shares), and what it will make."""

    op: Op
    inputs: tuple[Storage, ...]
    attrs: Attrs
    rule: Rule
    sizes: tuple[int, ...]
    outputs: tuple[Logical, ...]
    labels: Storage | None = None  # of the whole batch, where a slice takes its share by them


class Slicer:
    """Cuts batches in ``count`` slices on one executor; ``joined`` says of which operations it could not, how often."""

    def __init__(self, executor: Executor, count: int) -> None:
        self.executor = executor
        self.count = count
        self.joined: Counter[str] = Counter()
        self.tracker = executor.tracker
        self._queue: list[Queued] = []
        self._after: list[Callable[[], None]] = []
        self._graph: WeakSet[Logical] = WeakSet()  # of this iteration: what gradients flow through
        self._flushing = False

    # Making slices -------------------------------------------------------------------------------------------------
    def cuts(self, shape: Shape) -> bool:
        """Whether a batch of this shape has enough examples for all slices."""
        return bool(shape) and shape[0] >= self.count

    def sizes(self, batch: int) -> tuple[int, ...]:
        """Examples of each slice, equal but for one."""
        each, rest = divmod(batch, self.count)
        return tuple([each + (i < rest) for i in range(self.count)])

    def upload(self, shape: Shape, dtype: DType, data: np.ndarray | None) -> Logical:
        """A leaf in slices, with the values of a host array; a small one is one storage, and its slices are views."""
        sizes = self.sizes(shape[0])
        made = Logical(meta(shape, dtype), self, sizes)
        whole = None
        if made.nbytes <= WHOLE_BYTES:
            (whole,) = self.executor.run(UPLOAD, (), {"shape": shape, "dtype": dtype, "data": data})
        start = 0
        for i, size in enumerate(sizes):
            if whole is not None:
                made.parts[i] = self._narrowed(whole, start, size)
            else:
                values = None if data is None else data[start:start + size]
                attrs = {"shape": (size, *shape[1:]), "dtype": dtype, "data": values}
                (made.parts[i],) = self.executor.run(UPLOAD, (), attrs)
            start += size
        if whole is not None:
            whole.release()
        return made

    def _narrowed(self, whole: Storage, start: int, size: int) -> Storage:
        return self.executor.run(NARROW, (whole,), {"axis": 0, "start": start, "stop": start + size})[0]

    # Running operations --------------------------------------------------------------------------------------------
    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, given: int = 0) -> tuple[Storage, ...]:
        """Carry out, or queue, one operation with an operand of ours; as ``Executor.run``."""
        written = [inputs[i] for i in op.mutates(len(inputs))] if op.mutates is not None else []
        executor = self.executor
        if executor.tracker.updated and not executor.explicit_iterations:  # as Executor.run, before anything waits
            executor.end_iteration()
        if written:
            return self._write(op, inputs, attrs, written)
        if any(isinstance(x, Logical) and not x.sizes and x.pending for x in inputs):
            self.flush()
        sliced = [isinstance(x, Logical) and bool(x.sizes) for x in inputs]
        rule = op.slices([x.meta for x in inputs], attrs, sliced) if True in sliced and op.slices is not None else None
        sizes = self._sizes_of(inputs, rule, attrs) if rule is not None else ()
        if rule is None or not sizes:
            return self._run_whole(op, inputs, attrs)
        outputs = self._outputs(op, inputs, attrs, rule, sizes)
        operands = tuple([x if isinstance(x, Logical) and x.sizes and rule.along[i] else self._whole(x, op)
                          for i, x in enumerate(inputs)])
        labels = self._labels(inputs[rule.labels]) if rule.labels >= 0 else None
        for x in operands:
            if isinstance(x, Logical):
                x.waiting += 1
            else:
                x.retain()
        for y in outputs:
            y.waiting += 1  # until it is made
        self._queue.append(Queued(op, operands, attrs, rule, sizes, outputs, labels))
        self._record(op, inputs, attrs, outputs)
        return outputs

    def _labels(self, labels: Storage) -> Storage:
        """All labels, with one use for the call that waits."""
        if isinstance(labels, Logical):
            if labels.pending:
                self.flush()
            return self._joined(labels)
        labels.retain()
        return labels

    def _sizes_of(self, inputs: tuple[Storage, ...], rule: Rule, attrs: Attrs) -> tuple[int, ...]:
        """How the call is cut; () where its operands, or a shape it names, cannot be cut alike."""
        cuts = {x.sizes for x, along in zip(inputs, rule.along, strict=True)
                if along and isinstance(x, Logical) and x.sizes}
        if len(cuts) != 1:
            return ()
        (sizes,) = cuts
        total = sum(sizes)
        if any(along and x.meta.shape[0] != total for x, along in zip(inputs, rule.along, strict=True)):
            return ()
        if any(scaled(attrs[name], size, total) is None for name in rule.shapes for size in sizes):
            return ()
        return sizes

    def _outputs(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, rule: Rule,
                 sizes: tuple[int, ...]) -> tuple[Logical, ...]:
        """The records of what a call will make. Raises ShapeError."""
        metas = tuple([x.meta for x in inputs])
        op.check_dtypes(metas)
        made = op.infer(*metas, **attrs)
        made = made if isinstance(made, tuple) else (made,)
        if not op.view:
            made = self.executor.device.lay_out(op.name, metas, made)
        outputs = []
        for i, m in enumerate(made):
            cut = () if i in rule.whole else tuple([m.shape[0] * size // sum(sizes) for size in sizes])
            base = inputs[0].base if op.view else None
            outputs.append(Logical(m, self, cut, base if isinstance(base, Logical) else None))
        return tuple(outputs)

    def _record(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, outputs: tuple[Logical, ...]) -> None:
        """What the call keeps for its gradient."""
        executor = self.executor
        needs = needs_of(op, inputs) if executor.grad_enabled else ()
        if not needs:
            return
        executor.issued += 1
        signature = Signature(op, tuple([x.meta for x in inputs]), tuple([y.meta for y in outputs]), ())
        call = Call(op, inputs, attrs, tuple([y.me for y in outputs]), executor.issued, signature)
        for y in outputs:
            y.call = call
        keep(call, cast("tuple[Storage, ...]", outputs), needs, op.saved_indices(attrs, needs, len(inputs)))
        self._graph.update(outputs)

    def _run_whole(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
        """Carry out a call on whole tensors."""
        if any(isinstance(x, Logical) and x.sizes for x in inputs):
            self.joined[op.name] += 1
        operands = tuple([self._whole(x, op) for x in inputs])
        executor = self.executor
        enabled, executor.grad_enabled = executor.grad_enabled, False
        try:
            made = executor.run(op, operands, attrs)
        finally:
            executor.grad_enabled = enabled
        if not (enabled and needs_of(op, inputs)):
            return made
        base = inputs[0].base if op.view else None
        outputs = tuple([Logical(y.meta, self, (), base if isinstance(base, Logical) else None) for y in made])
        for y, part in zip(outputs, made, strict=True):
            y.parts[0] = part
        self._record(op, inputs, attrs, outputs)
        return outputs

    def _write(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, written: Sequence[Storage]
               ) -> tuple[Storage, ...]:
        """Carry out an operation in place."""
        self.flush()
        executor = self.executor
        if executor.grad_enabled:
            refuse_to_lose_gradients(op, inputs, written)
        logical = [x for x in written if isinstance(x, Logical)]
        sliced = [isinstance(x, Logical) and bool(x.sizes) for x in inputs]
        rule = op.slices([x.meta for x in inputs], attrs, sliced) if op.slices is not None else None
        sizes = self._sizes_of(inputs, rule, attrs) if rule is not None and True in sliced else ()
        if any(x.sizes for x in logical) and (rule is None or not sizes):
            raise UserError(f"{op.name} writes over {logical[0].named()}, and is not done in slices")
        enabled, executor.grad_enabled = executor.grad_enabled, False
        try:
            if rule is None or not sizes:
                executor.run(op, tuple([self._whole(x, op) for x in inputs]), attrs)
            else:
                queued = Queued(op, inputs, attrs, rule, sizes, ())
                for i in range(self.count):
                    for x in self._made_part(queued, i, 0)[1]:
                        x.release()
        finally:
            executor.grad_enabled = enabled
        executor.issued += 1
        for x in logical:
            x.base.mutated_at = executor.issued
        return ()

    # The queue -----------------------------------------------------------------------------------------------------
    @property
    def pending(self) -> bool:
        """Whether operations wait."""
        return bool(self._queue)

    def afterwards(self, action: Callable[[], None]) -> None:
        """Do something once all that waits now has been carried out."""
        self._after.append(action)

    def flush(self) -> None:
        """Carry out all that waits, one slice after the other. Raises what the executor raises; then all of it, and
        what was to be made of it, is lost."""
        queue, self._queue = self._queue, []
        if queue:
            executor = self.executor
            enabled, executor.grad_enabled = executor.grad_enabled, False
            try:
                self._carry_out(queue)
            except BaseException as error:
                self._after.clear()
                self._give_up(queue, f"{type(error).__name__}: {error}")
                raise
            finally:
                executor.grad_enabled = enabled
        after, self._after = self._after, []
        for action in after:
            action()

    def _carry_out(self, queue: list[Queued]) -> None:
        so_far: list[dict[int, Storage]] = [{} for _ in queue]  # whole outputs of the slices up to now
        for index in range(self.count):
            left = Counter(x for queued in queue for x in {*queued.inputs, *queued.outputs})
            for number, queued in enumerate(queue):
                dead = 0
                for x in {*queued.inputs, *queued.outputs}:
                    left[x] -= 1
                for i, x in enumerate(queued.inputs):
                    # The last use of it, and the only one in this call: what is made may be written over it.
                    if isinstance(x, Logical) and not left[x] and not x.refs and queued.inputs.count(x) == 1:
                        dead |= 1 << i
                made, used = self._made_part(queued, index, dead)
                self._unite(queued, index, made, so_far[number])
                for x in used:
                    x.release()
                for x in {*queued.inputs, *queued.outputs}:
                    if isinstance(x, Logical) and x.sizes and not left[x] and not x.refs:
                        x.drop_part(index)
        for queued in queue:
            self._finish(queued)

    def _made_part(self, queued: Queued, index: int, dead: int) -> tuple[tuple[Storage, ...], list[Storage]]:
        """Run one slice of a call; what it made, and what was made for it and is to be released."""
        op, rule, sizes, executor = queued.op, queued.rule, queued.sizes, self.executor
        before, size, total = sum(sizes[:index]), sizes[index], sum(sizes)
        attrs = queued.attrs
        if rule.shapes:
            attrs = {**attrs, **{name: scaled(attrs[name], size, total) for name in rule.shapes}}
        if rule.start:
            attrs = {**attrs, rule.start: before * (queued.inputs[0].meta.size // total)}
        if rule.first:
            attrs = {**attrs, rule.first: before}
        parts: list[Storage] = []
        used: list[Storage] = []
        for i, x in enumerate(queued.inputs):
            part: Storage | None = x
            if isinstance(x, Logical):
                part = x.parts[index]
                if part is None:
                    raise UserError(f"{x.named()} has no value: {x.failed or 'it was given away'}")
            elif rule.along[i]:
                part = self._narrowed(x, before, size)
                used.append(part)
            assert part is not None
            parts.append(part)
        for i in rule.shared:
            parts[i] = self._share(queued, index, parts[i])
            used.append(parts[i])
        made = executor.run(op, tuple(parts), attrs, dead)
        return made, used

    def _share(self, queued: Queued, index: int, value: Storage) -> Storage:
        """The share of one slice in a value."""
        rule, sizes = queued.rule, queued.sizes
        if rule.share is None or queued.labels is None:
            return self.executor.run(SCALE, (value,), {"value": sizes[index] / sum(sizes)})[0]
        part = self._narrowed(queued.labels, sum(sizes[:index]), sizes[index])
        attrs = {"ignore_index": queued.attrs["ignore_index"]} if "ignore_index" in queued.attrs else {}
        made = self.executor.run(rule.share, (value, part, queued.labels), attrs)[0]
        part.release()
        return made

    def _unite(self, queued: Queued, index: int, made: tuple[Storage, ...], so_far: dict[int, Storage]) -> None:
        """Take what one slice made: a part of an output, or added to those of the slices before."""
        rule = queued.rule
        whole: list[Storage] = []
        for i, (y, part) in enumerate(zip(queued.outputs, made, strict=True)):
            if i not in rule.whole:
                y.parts[index] = part
                continue
            if i in rule.shares:
                whole.append(self._share(queued, index, part))
                part.release()
            else:
                whole.append(part)
        if so_far and whole and rule.fold is not None:
            earlier = [so_far[i] for i in rule.whole]
            if rule.counted:
                counts = {"count": sum(queued.sizes[:index]), "other": queued.sizes[index]}
                united = self._folded(rule.fold, (*earlier, *whole), counts)
            else:
                united = [self._folded(rule.fold, pair, {})[0] for pair in zip(earlier, whole, strict=True)]
            whole = list(united)
        so_far.update(zip(rule.whole, whole, strict=True))
        if index == self.count - 1:
            for i, x in so_far.items():
                queued.outputs[i].parts[0] = x

    def _folded(self, fold: Op, parts: tuple[Storage, ...], attrs: Attrs) -> Sequence[Storage]:
        """What unites parts, the first of which it may write over; their uses end here."""
        united = self.executor.run(fold, parts, attrs, (1 << len(parts)) - 1)
        for x in parts:
            x.release()
        return united

    def _finish(self, queued: Queued) -> None:
        if queued.labels is not None:
            queued.labels.release()
        for x in (*queued.inputs, *queued.outputs):
            if isinstance(x, Logical):
                x.waiting -= 1
                if not x.waiting and not x.refs:
                    x.drop()
            else:
                x.release()

    def _give_up(self, queue: list[Queued], why: str) -> None:
        """What was to be made of the queue has no value."""
        for queued in queue:
            for y in queued.outputs:
                y.failed = why
                y.drop()
            self._finish(queued)

    # Whole values --------------------------------------------------------------------------------------------------
    def _whole(self, x: Storage, op: Op) -> Storage:
        """A storage with all of a tensor: itself, what was united, or a copy of all slices, which lives as long as they.
        Raises UserError where it has no value."""
        if not isinstance(x, Logical):
            return x
        self.flush()
        if x.sizes:
            return self._kept(x)
        (part,) = x.parts
        if part is None:
            raise UserError(f"{op.name}: {x.named()} has no value: {x.failed or 'it was given away'}")
        return part

    def _kept(self, x: Logical) -> Storage:
        """All slices in one storage, of which they are views from now on: a copy is made once."""
        whole = self._joined(x)
        start = 0
        for i, size in enumerate(x.sizes):
            x.drop_part(i)
            x.parts[i] = self._narrowed(whole, start, size)
            start += size
        whole.release()
        return whole

    def _joined(self, x: Logical) -> Storage:
        """All slices in one storage, with one use for the caller: a copy, unless they are views that lie side by side
        and are all of it."""
        parts = x.parts
        if None in parts:
            raise UserError(f"{x.named()} has no value: {x.failed or 'it was given away'}")
        base = cast(Storage, parts[0]).base
        if all(cast(Storage, p).base is base for p in parts) and base.meta.shape == x.meta.shape:
            base.retain()
            return base
        executor = self.executor
        enabled, executor.grad_enabled = executor.grad_enabled, False
        try:
            return executor.run(CONCAT, tuple(cast("list[Storage]", parts)), {"axis": 0})[0]
        finally:
            executor.grad_enabled = enabled

    def real(self, x: Storage) -> Storage:
        """The storage of a value that is one for the whole batch, with one use for the caller."""
        whole = self._whole(x, CONCAT)
        whole.retain()
        return whole

    def read(self, x: Logical) -> np.ndarray:
        """A host copy of a value, slice after slice. Raises UserError, OutOfMemory."""
        self.flush()
        if None in x.parts:
            raise UserError(f"{x.named()} has no value: {x.failed or 'it was given away'}")
        arrays = [self.executor.read(cast(Storage, part)) for part in x.parts]
        return np.concatenate(arrays) if x.sizes else arrays[0]

    def make_leaf(self, x: Logical) -> None:
        """Cut the lineage of all parts."""
        self.flush()
        for part in x.parts:
            if part is not None:
                self.executor.make_leaf(part)
        x.call, x.severed = None, None

    # Iterations ----------------------------------------------------------------------------------------------------
    def end_iteration(self, *, failed: bool = False) -> None:
        """The boundary: nothing waits any more, and no gradient flows through what was made."""
        if failed:
            queue, self._queue = self._queue, []
            self._after.clear()
            self._give_up(queue, "its iteration failed")
        else:
            self.flush()
        for x in list(self._graph):
            x.sever()
        self._graph.clear()
