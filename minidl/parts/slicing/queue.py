"""Queues operations on sliced tensors until a value of the whole batch is needed.

Then all of them run on the first slice, then all on the second slice, and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from minidl.memory.storage import Storage
from minidl.op import Attrs, Op
from minidl.ops.elementwise import ADD, SCALE
from minidl.ops.shape import RESHAPE
from minidl.parts.slice_rules import Rule, scaled
from minidl.parts.slicing.buckets import Buckets
from minidl.parts.slicing.exchange import gathered
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.origins import Origin, Origins
from minidl.parts.slicing.rows import narrowed, put_rows, ungraded

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.ranks.consensus import Alone


LATE = 1 << 40  # greater than the number of any call: marks a tensor that only queued operations need


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """A queued operation.

    inputs   tensors in slices, and storages of which each slice's call reads all or its rows
    sizes    the number of examples of each slice; () for a call on tensors of the whole batch, which runs after all
             slices
    outputs  the records of its outputs, whose parts are set when it runs
    labels   the labels of the whole batch, if the rule scales a value by them"""

    op: Op
    inputs: tuple[Storage, ...]
    attrs: Attrs
    rule: Rule
    sizes: tuple[int, ...]
    outputs: tuple[Logical, ...]
    origin: Origin
    labels: Storage | None = None


class Queue:
    """The queued operations of one executor. Each keeps its inputs alive until it has run.

    held   the numbers of the slices that this rank holds, one after the other; all of them if there are no ranks
    consensus  the agreement with the ranks that hold the other slices"""

    def __init__(self, executor: Executor, held: range, consensus: Alone) -> None:
        self.executor = executor
        self.held = held
        self.consensus = consensus
        self.origins = Origins(executor)
        self._buckets = Buckets(executor, consensus, partial(_put, executor, held))
        self._waiting: list[Queued] = []
        self._after: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, queued: Queued) -> None:
        """Queue an operation; ``flush`` will run it."""
        for x in (*queued.inputs, *queued.outputs):
            if isinstance(x, Logical):
                x.waiting += 1
            else:
                x.retain()
        self._waiting.append(queued)

    def view(self, queued: Queued) -> None:
        """Run an operation that only makes views on all slices now, without queueing it."""
        with ungraded(self.executor):
            for at, index in enumerate(self.held):
                for y, part in zip(queued.outputs, self.run_part(queued, index), strict=True):
                    y.put_part(at, part)

    def afterwards(self, action: Callable[[], None]) -> None:
        """Call ``action`` once all operations that are queued now have run."""
        self._after.append(action)

    def flush(self) -> None:
        """Run all queued operations. Raises the error of the first one that fails; then all their outputs are lost."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                with ungraded(self.executor):
                    self._run_all(waiting)
            except BaseException as error:
                self._after.clear()
                self._buckets.clear()
                self._give_up(waiting, f"{type(error).__name__}: {error}")
                raise
        after, self._after = self._after, []
        for action in after:
            action()

    def lose(self, why: str) -> None:
        """Discard all queued operations. Using their outputs raises an error with the text ``why``."""
        waiting, self._waiting = self._waiting, []
        self._after.clear()
        self._give_up(waiting, why)

    def _run_all(self, waiting: list[Queued]) -> None:
        cut = [queued for queued in waiting if queued.sizes]
        read_last = {y: len(waiting) for queued in waiting for y in queued.outputs if y.refs}  # read after the queue
        read_last |= {x: i for i, queued in enumerate(waiting) for x in queued.inputs
                      if isinstance(x, Logical) and not x.refs}
        for read, i in read_last.items():
            if not read.saved:
                read.keep_until(LATE - i)
        # For each operation: the tensors that it reads last; and among them the inputs that it reads once.
        last_use = {x: number for number, queued in enumerate(cut) for x in (*queued.inputs, *queued.outputs)}
        ending = [[x for x in dict.fromkeys((*queued.inputs, *queued.outputs))
                   if isinstance(x, Logical) and last_use[x] == number] for number, queued in enumerate(cut)]
        given = [[(i, x) for i, x in enumerate(queued.inputs) if x in ends and queued.inputs.count(x) == 1]
                 for queued, ends in zip(cut, ending, strict=True)]
        so_far: list[dict[int, Storage]] = [{} for _ in cut]  # outputs of the whole batch, united over slices so far
        apart: list[list[list[Storage]]] = [[] for _ in cut]  # with ranks: such outputs of each slice, not united yet
        for at, index in enumerate(self.held if cut else ()):
            for number, queued in enumerate(cut):
                # An input that nothing reads later, and this call once, donates its bytes.
                last = sum([1 << i for i, x in given[number] if not x.refs])
                with self.origins.carrying_out(queued.origin):
                    self._unite(queued, index, self.run_part(queued, index, last), so_far[number], apart[number])
                for y in ending[number]:
                    if y.sizes and not y.refs:
                        y.drop_part(at)
        self._buckets.close()
        for queued in waiting:
            if not queued.sizes:
                parts = tuple([x.part(0) if isinstance(x, Logical) else x for x in queued.inputs])
                with self.origins.carrying_out(queued.origin):
                    made = self.executor.run(queued.op, parts, queued.attrs)
                for y, part in zip(queued.outputs, made, strict=True):
                    _put(self.executor, self.held, y, part)
        for queued in waiting:
            self._finish(queued)

    def run_part(self, queued: Queued, index: int, last: int = 0) -> tuple[Storage, ...]:
        """Run a queued operation on slice ``index``; return the outputs of this slice.
        last: bit i is set if the slice of input i is used for the last time."""
        rule, sizes, executor = queued.rule, queued.sizes, self.executor
        before, size, total = sum(sizes[:index]), sizes[index], sum(sizes)
        attrs = queued.attrs
        if rule.shapes:
            attrs = {**attrs, **{name: scaled(attrs[name], size, total) for name in rule.shapes}}
        if rule.start:
            attrs = {**attrs, rule.start: attrs.get(rule.start, 0) + before * (queued.inputs[0].meta.size // total)}
        if rule.first:
            attrs = {**attrs, rule.first: before}
        parts: list[Storage] = []
        made_for_it: list[Storage] = []
        for i, x in enumerate(queued.inputs):
            if isinstance(x, Logical):
                parts.append(x.part(index - self.held.start))
            elif rule.along[i]:
                rows = x.meta.shape[0]
                parts.append(narrowed(executor, x, before * rows // total, size * rows // total))
                made_for_it.append(parts[i])
            else:
                parts.append(x)
        for i in rule.shared:
            parts[i] = self._share(queued, index, parts[i])
            made_for_it.append(parts[i])
        outputs = executor.run(queued.op, tuple(parts), attrs, last)
        for x in made_for_it:
            x.release()
        return outputs

    def _share(self, queued: Queued, index: int, value: Storage) -> Storage:
        """Return ``value`` scaled for slice ``index``: by the slice's share of the batch's examples.
        If the call has labels and the rule an operation ``share``: by the slice's share of the labels that count."""
        rule, sizes, executor = queued.rule, queued.sizes, self.executor
        if rule.share is None or queued.labels is None:
            return executor.run(SCALE, (value,), {"value": sizes[index] / sum(sizes)})[0]
        part = narrowed(executor, queued.labels, sum(sizes[:index]), sizes[index])
        attrs = {"ignore_index": queued.attrs["ignore_index"]} if "ignore_index" in queued.attrs else {}
        made = executor.run(rule.share, (value, part, queued.labels), attrs)[0]
        part.release()
        return made

    def _unite(self, queued: Queued, index: int, made: tuple[Storage, ...], so_far: dict[int, Storage],
               apart: list[list[Storage]]) -> None:
        """Take the outputs ``made`` for slice ``index``: set them as parts, or unite them with the earlier slices'.
        so_far: by output, the united tensor of the earlier slices. apart: with ranks, the outputs of each slice; they
        are united when this rank has run all its slices, as the order must be that of the slices of all ranks."""
        rule = queued.rule
        whole: list[Storage] = []
        for i, (y, part) in enumerate(zip(queued.outputs, made, strict=True)):
            if i not in rule.whole:
                y.put_part(index - self.held.start, part)
                continue
            if i in rule.shares:
                whole.append(self._share(queued, index, part))
                part.release()
            else:
                whole.append(part)
        if self.consensus.ranks is not None and whole:
            apart.append(whole)
            if index < self.held.stop - 1:
                return
            if rule.fold is ADD:
                for i, parts in zip(rule.whole, zip(*apart, strict=True), strict=True):
                    self._buckets.add(queued.outputs[i], parts)
                return
            whole = self._unite_ranks(queued, apart)
        elif so_far and rule.fold is not None:
            earlier = [so_far[i] for i in rule.whole]
            whole = self._fold(queued, index, earlier, whole)
        so_far.update(zip(rule.whole, whole, strict=True))
        if index == self.held.stop - 1:
            for i, x in so_far.items():
                _put(self.executor, self.held, queued.outputs[i], x)

    def _fold(self, queued: Queued, index: int, earlier: list[Storage], whole: list[Storage]) -> list[Storage]:
        """Unite the rule's whole outputs of the slices before ``index`` (earlier) with those of this slice (whole)."""
        fold = queued.rule.fold
        assert fold is not None
        if queued.rule.counted:
            counts = {"count": sum(queued.sizes[:index]), "other": queued.sizes[index]}
            return list(self._folded(fold, (*earlier, *whole), counts))
        return [self._folded(fold, pair, {})[0] for pair in zip(earlier, whole, strict=True)]

    def _unite_ranks(self, queued: Queued, apart: list[list[Storage]]) -> list[Storage]:
        """Gather all ranks' ``whole`` outputs and fold them in order of slices. apart: those of this rank's slices."""
        executor, consensus = self.executor, self.consensus
        stacks = []
        for parts in zip(*apart, strict=True):
            rows = tuple([executor.run(RESHAPE, (x,), {"shape": (1, *x.meta.shape)})[0] for x in parts])
            stacks.append(gathered(executor, rows, (1,) * len(queued.sizes), consensus))
            for x in (*parts, *rows):
                x.release()
        united: list[Storage] = []
        for index in range(len(queued.sizes)):
            row = [self._row(stack, index) for stack in stacks]
            united = self._fold(queued, index, united, row) if united else row
        for stack in stacks:
            stack.release()
        return united

    def _row(self, stack: Storage, number: int) -> Storage:
        """Return a view of row ``number`` of a stacked tensor, without its first dimension; the caller releases it."""
        row = narrowed(self.executor, stack, number, 1)
        made = self.executor.run(RESHAPE, (row,), {"shape": stack.meta.shape[1:]})[0]
        row.release()
        return made

    def _folded(self, fold: Op, parts: tuple[Storage, ...], attrs: Attrs) -> Sequence[Storage]:
        """Run ``fold`` on the outputs of slices; it may overwrite these, and they are released."""
        united = self.executor.run(fold, parts, attrs, (1 << len(parts)) - 1)
        for x in parts:
            x.release()
        return united

    def _finish(self, queued: Queued) -> None:
        if queued.labels is not None:
            queued.labels.release()
        for x in (*queued.inputs, *queued.outputs):
            if not isinstance(x, Logical):
                x.release()
                continue
            x.waiting -= 1
            if not x.waiting and not x.saved:
                x.keep_until(None)
            if not x.waiting and not x.refs:
                x.drop()

    def _give_up(self, waiting: list[Queued], why: str) -> None:
        """Mark the outputs of these operations as lost; ``why`` is the text of the error on their use."""
        for queued in waiting:
            for y in queued.outputs:
                y.failed = why
                y.drop()
            self._finish(queued)


def _put(executor: Executor, held: range, y: Logical, made: Storage) -> None:
    """Set the value of an output of the whole batch; of a divided one, this rank's rows of it."""
    if y.divided:
        put_rows(executor, held, y, made)
    else:
        y.put_part(0, made)
