"""Runs operations on tensors in slices: turns one operation of the program into one call per slice for the executor.

These calls work on ordinary storages. So the tracker, planners, swaps and replays see a longer trace, and know of no
slices. Calls are queued until a value of the whole batch is needed: a batch statistic, a value that the program reads,
an optimizer's update. Then all queued calls run on the first slice, then on the second, and so on, so that intermediate
results exist for one slice at a time. Gradients are taken of the program's own operations on whole tensors; the
gradient formulas' operations run here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from minidl.errors import UserError
from minidl.memory.storage import Call, Storage
from minidl.memory.writing import refuse_to_write
from minidl.meta import DType, Meta, Shape, meta
from minidl.op import Attrs, Op, Signature
from minidl.ops.update import UPLOAD
from minidl.parts.slice_rules import Rule, sizes_of
from minidl.parts.slicing.cuts import is_divided, rule_of
from minidl.parts.slicing.division import divided_leaf, divisible, write_rows
from minidl.parts.slicing.joiner import Joiner
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.queue import Queued
from minidl.parts.slicing.rows import put_rows, ungraded
from minidl.ranks.group import GRADIENTS, NOTHING
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.executor import Executor

WHOLE_BYTES = 1 << 16  # a batch of at most these bytes is uploaded as one storage, and its slices are views of it


class Slicer(Joiner):
    """Cuts the batches of one executor into ``count`` slices, and runs calls on them."""

    # Making slices -------------------------------------------------------------------------------------------------
    def upload(self, shape: Shape, dtype: DType, values: np.ndarray | None) -> Logical | None:
        """Make a leaf in slices, whose numbers of examples differ by at most one. Raises OutOfMemory.
        None if the batch has fewer examples than slices. A small batch is one storage, and its slices are views."""
        if not shape or shape[0] < self.count:
            return None
        made = Logical(meta(shape, dtype), self, sizes_of(shape[0], self.count))
        self.consensus.sees(shape[0])
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

    def parameter(self, described: Meta, *, requires_grad: bool, state: bool = False) -> Logical | None:
        """Make an optimizer's state of which each rank keeps its rows, if ranks divide states; None: it stays whole.
        Raises OutOfMemory."""
        if not state or self.divides == NOTHING or not divisible(self, described):
            return None
        return divided_leaf(self, described)

    # Running operations --------------------------------------------------------------------------------------------
    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, donated: int = 0) -> tuple[Storage, ...]:
        """Run or queue a call with an input in slices; arguments, result as ``Executor.run``; ignores donation."""
        try:
            return self._run(op, inputs, attrs)
        finally:
            self._give_back()

    def _run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
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
        """Make the records of a call's outputs; their parts come when it runs. Raises ShapeError for a misfit."""
        metas = tuple([x.meta for x in inputs])
        made = op.describe(metas, attrs)
        if not op.view:
            made = self.executor.device.lay_out(op.name, metas, made)
        total = sum(sizes)
        cuts = [() if i in rule.whole else tuple([m.shape[0] * size // total for size in sizes])
                for i, m in enumerate(made)]
        divided = is_divided(inputs)
        return tuple([Logical(m, self, cut, _base(op, inputs), divided=divided and bool(cut))
                      for m, cut in zip(made, cuts, strict=True)])

    def _run_afterwards(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Storage, ...]:
        """Queue a call on whole tensors that queued calls will compute, so that the queue need not run for it now."""
        every = Rule((False,) * len(inputs), whole=tuple(range(len(op.outputs))))
        outputs = self._outputs(op, inputs, attrs, every, ())
        self._queue.add(Queued(op, inputs, attrs, every, (), outputs, self.origins.here()))
        self._record(op, inputs, attrs, outputs)
        return outputs

    def _record(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, outputs: tuple[Logical, ...]) -> None:
        """Make the record of a call for backward(), if a gradient is wanted, and save the tensors that it needs."""
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
        """Run a call that cannot run slice by slice, after joining the slices of its inputs."""
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
        """Run the queue, then an operation in place on each slice. Raises UserError if it cannot run slice by slice."""
        self.flush()
        executor = self.executor
        refuse_to_write(op, inputs, written, differentiates=executor.grad_enabled)
        ours = [x for x in written if isinstance(x, Logical)]
        if is_divided(inputs):
            with ungraded(executor):
                write_rows(self, op, inputs, attrs)
            executor.issued += 1
            for x in ours:
                x.base.mutated_at = executor.issued
            return ()
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

    # Gradients and writes ------------------------------------------------------------
    def before_write(self, op: Op, inputs: Sequence[Storage]) -> None:
        """Run all queued calls before a write in place, as they may read the bytes that it overwrites."""
        if self.pending:
            self.flush()

    def deliver(self, gradient: Tensor, leaf: Storage, add: Callable[[Tensor], None]) -> None:
        """Call ``add`` with the gradient of a leaf: at once, or after the queued calls, which may compute it."""
        x = gradient.storage
        divides = self.divides == GRADIENTS and divisible(self, leaf.meta)
        if self.pending:
            if divides and isinstance(x, Logical) and not x.sizes and x.pending and x.refs == x.waiting == 1:
                x.divide(sizes_of(x.meta.shape[0], self.count), len(self.held))  # so its sum leaves each rank its rows
            self._queue.afterwards(partial(self.deliver, gradient, leaf, add))
        elif leaf.keeper is self or isinstance(x, Logical) and x.divided:
            add(gradient)
        elif divides:
            kept = Logical(x.meta, self, sizes_of(x.meta.shape[0], self.count), divided=True)
            put_rows(self.executor, self.held, kept, self._taken(x))
            add(Tensor(kept))
        else:
            add(Tensor(self._taken(x)))

    def _labels(self, labels: Storage) -> Storage:
        """Return the labels of the whole batch in one storage, which the queued call releases."""
        if not isinstance(labels, Logical) or self.ranks is not None:
            return self.real(labels)  # of ranks, which keeps the joined ones: the gradient needs them too
        if labels.pending:
            self.flush()
        return self._joined(labels)

    def make_leaf(self, x: Logical) -> None:
        """Make each slice a leaf: run the calls that compute it, and cut its lineage."""
        if x.pending:
            self.flush()
        for part in x.parts:
            if part is not None:
                self.executor.make_leaf(part)
        x.call, x.severed = None, None

    # Iterations ----------------------------------------------------------------------------------------------------
    def end_iteration(self, *, failed: bool = False) -> None:
        """End an iteration: run the queued calls, or discard them if it ``failed``.
        Its calls have no gradients any more. Raises RanksDiverged if ranks made different numbers of exchanges."""
        if failed:
            self._queue.lose("its iteration failed")
        else:
            self.flush()
        self.consensus.end_iteration(self.executor.finish, failed=failed)
        for x in list(self._graph):
            x.sever()
        self._graph.clear()


def _base(op: Op, inputs: tuple[Storage, ...]) -> Logical | None:
    """Return the tensor in slices of which a call's output is a view; None if it is no view."""
    return cast(Logical, inputs[0].base) if op.view and isinstance(inputs[0], Logical) else None


def slicer_of(executor: Executor) -> Slicer | None:
    """Return the slicer of an executor; None if the executor cuts no batches into slices."""
    return next((keeper for keeper in executor.part_keepers if isinstance(keeper, Slicer)), None)
