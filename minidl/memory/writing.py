"""Operations in place: refuses those that would give wrong gradients or values, and keeps replays right.

A write breaks the lineage of every tensor that was computed from the old bytes. So before the write, such tensors are
recomputed if they are dropped, and may then be swapped but not dropped. After it, no replay reads the written tensor as
it was before.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidl.errors import ShapeError, UserError
from minidl.memory.leftovers import Leftovers
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.replay import Replay
from minidl.memory.state import MemoryState
from minidl.memory.storage import RECOMPUTE, Storage, View
from minidl.meta import Meta
from minidl.op import Op


class WriteGuard:
    """Keeps lineage right around each in-place call: ``before_write``, then ``after_write`` or ``call_off``."""

    def __init__(self, state: MemoryState, replaying: Replay, leftovers: Leftovers) -> None:
        self.state = state
        self.replaying = replaying
        self.leftovers = leftovers
        self._lineage_start = 0  # no lineage leads to calls before this one
        self._secured: list[Storage] = []  # tensors that must not be dropped until the write under way has run

    def before_write(self, targets: Sequence[Storage], inputs: Sequence[Storage]) -> None:
        """Recompute dropped tensors whose replay needs the old ``targets``. Raises OutOfMemory, Unrecoverable.
        The call's dropped ``inputs`` come after that, all in one replay. targets: storages that own bytes, no views.
        Until ``after_write`` or ``call_off`` none of the tensors recomputed here is dropped, and no tensor is dropped
        whose replay would read these bytes. Only a replay in this method may drop one as a last resort: it comes back.
        """
        state = self.state
        state.writing = set(targets)
        state.writes += 1
        latest = max([base.last_access for base in targets])
        if latest >= state.tracker.iteration_start:
            state.impure = True
        if latest < self._lineage_start:
            return  # running statistics, as a rule: no call that may be replayed has read them
        self.leftovers.unshare_all()  # what starts from them must not miss the old bytes later
        operands = dict.fromkeys([storage.base for storage in inputs])
        found = True
        while found:  # a replay may drop a resident tensor that reads the old bytes too
            found = False
            for other in state.missing():
                if other.status is not RECOMPUTE or not other.refs or other in operands:
                    continue
                if reads(missing_calls(other) or [], state.writing):
                    found |= self._secure(other)
            if not found and (dropped := [base for base in operands if base.status is RECOMPUTE]):
                found = self._secure(*dropped)
        state.secured = True

    def _secure(self, *dropped: Storage) -> bool:
        """Recompute storages, which then must not be dropped until the write has run; True if one has bytes now."""
        state = self.state
        self.replaying.replay(*dropped)
        for storage in dropped:
            if storage not in state.protected:
                state.protected.add(storage)
                state.awaited.add(storage)
                self._secured.append(storage)
        return any(storage.status is not RECOMPUTE for storage in dropped)

    def after_write(self, targets: Sequence[Storage], number: int) -> None:
        """Note that call ``number`` of the run has written ``targets``: free stale host copies; make them leaves."""
        state = self.state
        with state.arena_busy:
            for base in targets:
                base.mutated_at = number
                if base.host is not None:
                    state.allocator.forget_host_copy(base)
        self._end()
        for base in targets:  # this may free tensors, so the arena must not be busy
            base.call = None

    def call_off(self) -> None:
        """Undo ``before_write``, because the in-place call is not made: tensors may be dropped again."""
        self._end()

    def _end(self) -> None:
        self.state.writing, self.state.secured = set(), False
        self.state.writes += 1
        self.state.protected.difference_update(self._secured)
        self.state.awaited.difference_update(self._secured)
        self._secured.clear()

    def end_iteration(self) -> None:
        """Note that all lineage was cut, so no replay can run a call of the iteration that has ended."""
        self._lineage_start = self.state.tracker.sequence + 1


# Refusals ------------------------------------------------------------------------------------------------------------
def refuse_to_write(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage], *, differentiates: bool) -> None:
    """Raise UserError or ShapeError if an in-place operation would lose a gradient or write overlapping elements.
    written: those of ``inputs`` that the operation writes. differentiates: gradients are recorded."""
    _refuse_to_overlap(op, inputs, written)
    if differentiates:
        _refuse_to_lose_gradients(op, inputs, written)


def _refuse_to_lose_gradients(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage]) -> None:
    """Raise UserError if a gradient would flow through a written or read tensor: in-place writes have no gradient."""
    for storage in written:
        base = storage if type(storage) is Storage else storage.base
        if base.requires_grad and base.call is not None:
            raise UserError(f"{op.name} would overwrite a value that a gradient flows through, {base.named()}: use the "
                            "operation that returns a new tensor")
    for storage in () if op.update else inputs:
        if storage.requires_grad and storage not in written:
            raise UserError(f"{op.name} would lose the gradient of {storage.named()}: use the operation that returns a "
                            "new tensor, detach(), or no_grad()")


def _refuse_to_overlap(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage]) -> None:
    """Raise ShapeError if a written element shares its bytes with another element that is written or read.
    The result would depend on the order in which a kernel visits the elements."""
    for storage in written:
        meta = storage.meta
        if meta.contiguous or not meta.size:
            continue
        if any(n > 1 and not stride for n, stride in zip(meta.shape, meta.strides, strict=True)):
            raise ShapeError(f"{op.name} would write several elements of {storage.named()} to one place, as it is "
                             "expanded: use contiguous()")
    if len(set(inputs)) == len(inputs) and View not in map(type, inputs):
        return  # no two have a base in common
    for storage in written:
        for other in inputs:
            if other.base is storage.base and other.meta is not storage.meta and _share_bytes(storage.meta, other.meta):
                raise ShapeError(f"{op.name} would overwrite its own input: {other.meta} and {storage.named()} are "
                                 "overlapping parts of one tensor: use contiguous()")


def _share_bytes(one: Meta, other: Meta) -> bool:
    """True if two views of one tensor (their metas) have bytes in common."""
    import numpy as np  # which only counts here

    class At:
        def __init__(self, meta: Meta) -> None:
            size = meta.dtype.itemsize
            self.__array_interface__ = {
                "version": 3, "typestr": f"|V{size}", "shape": meta.shape,
                "strides": tuple([stride * size for stride in meta.strides]), "data": (1 + meta.offset * size, True)}

    return np.shares_memory(np.asarray(At(one)), np.asarray(At(other)))
