"""Runs operations on tensors that are in slices along their batch: the rewrite between an operation and the executor.

An operation with an operand in slices becomes one call per slice, of the same operation, on ordinary storages. So the
tracker, planners, swaps and replays see a longer trace, and know of no slices. Calls are queued until a value of the
whole batch is needed: a statistic, a value that is read, an update. Between two of these, slices run depth first, and
intermediate results live one slice at a time. Gradients are those of the program's own operations on whole tensors;
their formulas run here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np

from minidl.errors import UserError
from minidl.memory.storage import Call, Storage
from minidl.memory.writing import refuse_to_write
from minidl.meta import DType, Shape, meta
from minidl.op import Attrs, Op, Signature
from minidl.ops.update import UPLOAD
from minidl.parts.keeper import PartKeeper
from minidl.parts.slice_rules import Rule
from minidl.parts.slicing.cuts import rule_of
from minidl.parts.slicing.exchange import gathered
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.queue import Queue, Queued, narrowed, ungraded
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.ranks import Ranks

WHOLE_BYTES = 1 << 16  # up to which a batch is uploaded in one piece, and its slices are views of it


class Slicer(PartKeeper):
    """Cuts batches into ``count`` slices on one executor.

    ranks    those that hold as many of the slices each; None if this executor holds all
    held     the numbers of the slices that it holds
    joined   by operation: how often its operands had to be joined, as it cannot run slice by slice
    origins  the layers from which queued calls come
    """

    def __init__(self, executor: Executor, count: int, ranks: Ranks | None = None) -> None:
        self.executor = executor
        self.count = count
        self.ranks = ranks
        each = count if ranks is None else count // ranks.count
        self.held = range(count)[each * (ranks.rank if ranks else 0):][:each]
        self.joined: Counter[str] = Counter()
        self.tracker = executor.tracker
        self._queue = Queue(executor, self.held, ranks)
        self.origins = self._queue.origins
        self._graph: WeakSet[Logical] = WeakSet()  # the tensors of this iteration that gradients flow through
        executor.ends_at_update = True  # an update needs all slices, so no gradient is left to be taken

    # Making slices -------------------------------------------------------------------------------------------------
    def upload(self, shape: Shape, dtype: DType, values: np.ndarray | None) -> Logical | None:
        """A leaf in slices of equal size, but for one example; None if the batch has fewer examples than slices. A
        small one is one storage, and its slices are views. Raises OutOfMemory."""
        if not shape or shape[0] < self.count:
            return None
        each, rest = divmod(shape[0], self.count)
        made = Logical(meta(shape, dtype), self, tuple([each + (i < rest) for i in range(self.count)]))
        run = self.executor.run
        if made.nbytes <= WHOLE_BYTES and self.ranks is None:
            (whole,) = run(UPLOAD, (), {"shape": shape, "dtype": dtype, "data": values})
            self._become_views(made, whole)
            return made
        for at, start, size in self._places(made):
            attrs = {"shape": (size, *shape[1:]), "dtype": dtype,
                     "data": None if values is None else values[start:start + size]}
            made.put_part(at, run(UPLOAD, (), attrs)[0])
        return made

    def _places(self, x: Logical) -> list[tuple[int, int, int]]:
        """Of each slice that is held: the number of its part, its first row, and its rows."""
        return [(at, sum(x.sizes[:i]), x.sizes[i]) for at, i in enumerate(self.held)]

    def _become_views(self, x: Logical, whole: Storage) -> None:
        """Replace the slices by views of one storage, whose use passes to them."""
        for at, start, size in self._places(x):
            x.drop_part(at)
            x.put_part(at, narrowed(self.executor, whole, start, size))
        whole.release()

    # Running operations --------------------------------------------------------------------------------------------
    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, donated: int = 0) -> tuple[Storage, ...]:
        """Run, or queue, a call that has an operand in slices; arguments and result as ``Executor.run``."""
        executor = self.executor
        if executor.tracker.updated and not op.update and not executor.explicit_iterations:
            executor.end_iteration()  # as Executor.run, before the call is queued
        written = [inputs[i] for i in op.mutates(len(inputs))] if op.mutates is not None else []
        if written:
            return self._write(op, inputs, attrs, written)
        if any(isinstance(x, Logical) and not x.sizes and x.pending for x in inputs):
            if not any(isinstance(x, Logical) and x.sizes for x in inputs):
                return self._run_afterwards(op, inputs, attrs)
            self.flush()
        rule, sizes = rule_of(op, inputs, attrs)
        if rule is None:
            return self._run_whole(op, inputs, attrs)
        outputs = self._outputs(op, inputs, attrs, rule, sizes)
        operands = tuple([x if isinstance(x, Logical) and x.sizes and along else self._whole(x)
                          for x, along in zip(inputs, rule.along, strict=True)])
        labels = self._labels(inputs[rule.labels]) if rule.labels >= 0 else None
        queued = Queued(op, operands, attrs, rule, sizes, outputs, self.origins.here(), labels)
        if op.view and not any(isinstance(x, Logical) and x.pending for x in inputs):
            self._queue.view(queued)  # its operand is there already
        else:
            self._queue.add(queued)
        self._record(op, inputs, attrs, outputs)
        return outputs

    def _outputs(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, rule: Rule,
                 sizes: tuple[int, ...]) -> tuple[Logical, ...]:
        """The records of a call's outputs. Raises ShapeError."""
        metas = tuple([x.meta for x in inputs])
        made = op.describe(metas, attrs)
        if not op.view:
            made = self.executor.device.lay_out(op.name, metas, made)
        total = sum(sizes)
        cuts = [() if i in rule.whole else tuple([m.shape[0] * size // total for size in sizes])
                for i, m in enumerate(made)]
        return tuple([Logical(m, self, cut, _base(op, inputs)) for m, cut in zip(made, cuts, strict=True)])

    def _run_afterwards(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
        """Queue a call on values of the whole batch: backward() does not read the sum of two losses."""
        every = Rule((False,) * len(inputs), whole=tuple(range(len(op.outputs))))
        outputs = self._outputs(op, inputs, attrs, every, ())
        self._queue.add(Queued(op, inputs, attrs, every, (), outputs, self.origins.here()))
        self._record(op, inputs, attrs, outputs)
        return outputs

    def _record(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, outputs: tuple[Logical, ...]) -> None:
        """Save the tensors that the call's gradient needs."""
        executor = self.executor
        needs = op.needs(inputs) if executor.grad_enabled else ()
        if not needs:
            return
        executor.issued += 1
        signature = Signature(op, tuple([x.meta for x in inputs]), tuple([y.meta for y in outputs]), ())
        call = Call(op, inputs, attrs, tuple([y.me for y in outputs]), executor.issued, signature)
        for y in outputs:
            y.call = call
        call.save(outputs, needs, op.saved_indices(attrs, needs, len(inputs)))
        self._graph.update(outputs)

    def _run_whole(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
        """Run a call on whole tensors."""
        if any(isinstance(x, Logical) and x.sizes for x in inputs):
            self.joined[op.name] += 1
        operands = tuple([self._whole(x) for x in inputs])
        with ungraded(self.executor):
            made = self.executor.run(op, operands, attrs)
        if not (self.executor.grad_enabled and op.needs(inputs)):
            return made
        outputs = tuple([Logical(y.meta, self, (), _base(op, inputs)) for y in made])
        for y, part in zip(outputs, made, strict=True):
            y.put_part(0, part)
        self._record(op, inputs, attrs, outputs)
        return outputs

    def _write(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, written: Sequence[Storage]
               ) -> tuple[Storage, ...]:
        """Run an operation in place. Raises UserError for one that cannot run slice by slice."""
        self.flush()
        executor = self.executor
        refuse_to_write(op, inputs, written, differentiates=executor.grad_enabled)
        ours = [x for x in written if isinstance(x, Logical)]
        rule, sizes = rule_of(op, inputs, attrs)
        if rule is None and any(x.sizes for x in ours):
            raise UserError(f"{op.name} writes {ours[0].named()} in place, and cannot run slice by slice")
        with ungraded(executor):
            if rule is None:
                executor.run(op, tuple([self._whole(x) for x in inputs]), attrs)
            else:
                queued = Queued(op, inputs, attrs, rule, sizes, (), self.origins.here())
                for index in self.held:
                    self._queue.run_part(queued, index)
        executor.issued += 1
        for x in ours:
            x.base.mutated_at = executor.issued
        return ()

    # Whole values --------------------------------------------------------------------------------------------------
    @property
    def pending(self) -> bool:
        """True if operations are queued."""
        return bool(self._queue)

    def flush(self) -> None:
        """Run all queued calls. Raises what the executor raises; then their results are lost."""
        self._queue.flush()

    def before_write(self, op: Op, inputs: Sequence[Storage]) -> None:
        """Run all queued calls: they read the old bytes."""
        if self.pending:
            self.flush()

    def deliver(self, gradient: Tensor, leaf: Storage, add: Callable[[Tensor], None]) -> None:
        """Add a gradient to a leaf, after the queued calls: it may be one of their results."""
        if self.pending:
            self._queue.afterwards(partial(self.deliver, gradient, leaf, add))
        else:
            add(gradient if leaf.keeper is self else Tensor(self._taken(gradient.storage)))

    def _whole(self, x: Storage) -> Storage:
        """A storage with all of a tensor. Slices are joined, and are views of it from now on. Raises UserError for a
        lost value."""
        if not isinstance(x, Logical):
            return x
        if x.pending:
            self.flush()
        if not x.sizes:
            return x.part(0)
        whole = self._joined(x)
        self._become_views(x, whole)  # these hold it from now on
        return whole

    def _joined(self, x: Logical) -> Storage:
        """All slices in one storage, with one use for the caller: a copy, unless they are views of one."""
        parts = tuple([x.part(i) for i in range(len(x.parts))])
        base = parts[0].base
        if all(part.base is base for part in parts) and base.meta.shape == x.meta.shape:
            base.retain()
            return base
        with ungraded(self.executor):
            return gathered(self.executor, parts, x.sizes, self.ranks)

    def _labels(self, labels: Storage) -> Storage:
        """All labels, with one use for the queued call."""
        if not isinstance(labels, Logical) or self.ranks is not None:
            return self._real(labels)  # of ranks, which keeps the joined ones: the gradient needs them too
        if labels.pending:
            self.flush()
        return self._joined(labels)

    def _real(self, x: Storage) -> Storage:
        """One storage with all of a value, with one use for the caller."""
        whole = self._whole(x)
        whole.retain()
        return whole

    def _taken(self, x: Storage) -> Storage:
        """As ``_real``, consuming x: the storage has no other use if x has one handle."""
        whole = self._real(x)
        if isinstance(x, Logical) and not x.sizes and x.refs == 1:
            x.drop()
        return whole

    def look(self, x: Logical, read: Callable[[Storage], Any], *, joined: bool) -> Any:
        """Apply ``read`` to all slices in one storage, or to each slice. Raises UserError for a lost value,
        OutOfMemory."""
        if joined or x.sizes and self.ranks is not None:
            whole = self._real(x)
            try:
                return read(whole)
            finally:
                whole.release()
        if x.pending:
            self.flush()
        arrays = [read(x.part(i)) for i in range(len(x.parts))]
        return np.concatenate(arrays) if x.sizes else arrays[0]

    def make_leaf(self, x: Logical) -> None:
        """Cut the lineage of all parts."""
        if x.pending:
            self.flush()
        for part in x.parts:
            if part is not None:
                self.executor.make_leaf(part)
        x.call, x.severed = None, None

    # Iterations ----------------------------------------------------------------------------------------------------
    def end_iteration(self, *, failed: bool = False) -> None:
        """End an iteration: run or lose all queued calls; no gradient flows through its tensors any more."""
        if failed:
            self._queue.lose("its iteration failed")
        else:
            self.flush()
        for x in list(self._graph):
            x.sever()
        self._graph.clear()


def _base(op: Op, inputs: tuple[Storage, ...]) -> Logical | None:
    """The tensor in slices of which a call's output is a view, if it is one."""
    return cast(Logical, inputs[0].base) if op.view and isinstance(inputs[0], Logical) else None


def slicer_of(executor: Executor) -> Slicer | None:
    """The slicer of an executor; None if it cuts no batches."""
    return next((keeper for keeper in executor.part_keepers if isinstance(keeper, Slicer)), None)
