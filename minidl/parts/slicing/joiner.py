"""The calls of one executor on tensors in slices: who runs them, and how the slices of a tensor are joined or read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from minidl.memory.storage import Storage
from minidl.parts.keeper import PartKeeper
from minidl.parts.slicing.exchange import gathered
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.queue import Queue
from minidl.parts.slicing.rows import narrowed, ungraded
from minidl.ranks.group import NOTHING

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.ranks.consensus import Alone


class Joiner(PartKeeper):
    """Holds what a slicer needs to run calls, and joins the slices of a tensor where its whole value is needed.

    count    the number of slices into which a batch is cut
    ranks    the ranks among which the slices are divided equally; None if this executor holds all slices
    held     the numbers of the slices that this executor holds
    joined   operation name -> how often slices were joined for it, because it cannot run slice by slice
    origins  records the layers that made the queued calls
    divides  what the ranks divide (``Ranks.divide``)
    """

    def __init__(self, executor: Executor, count: int, consensus: Alone) -> None:
        self.count = count
        rank, ranks, self.divides = 0, 1, NOTHING
        if (of := consensus.ranks) is not None:
            rank, ranks, self.divides = of.rank, of.count, of.divide
        self.held = range(count)[count // ranks * rank:][:count // ranks]
        self._use(executor, consensus)

    def _use(self, executor: Executor, consensus: Alone) -> None:
        """Run calls by ``executor`` from now on, and exchange with the ranks of ``consensus``."""
        self.executor, self.tracker = executor, executor.tracker
        self.consensus, self.ranks = consensus, consensus.ranks
        self.joined: Counter[str] = Counter()
        self._lent: list[Storage] = []  # copies of divided tensors, until the call that reads them has run
        self._queue = Queue(executor, self.held, consensus)
        self.origins = self._queue.origins
        self._graph: WeakSet[Logical] = WeakSet()  # the tensors of this iteration that gradients flow through
        executor.ends_at_update = True  # an update needs all slices, so no gradient is left to be taken

    @contextmanager
    def lent_to(self, executor: Executor, consensus: Alone) -> Iterator[None]:
        """Run calls by another executor, which does a dry run, in a ``with`` block; its queue is empty at first.
        consensus: an agreement that asks no other rank."""
        names = "executor", "tracker", "consensus", "ranks", "origins", "joined", "_queue", "_graph", "_lent"
        own = {name: getattr(self, name) for name in names}
        self._use(executor, consensus)
        try:
            yield
        finally:
            self.__dict__.update(own)

    def _places(self, x: Logical) -> list[tuple[int, int, int]]:
        """Return for each slice that this executor holds: its index in ``parts``, its first row, its number of rows."""
        return [(at, sum(x.sizes[:i]), x.sizes[i]) for at, i in enumerate(self.held)]

    def _become_views(self, x: Logical, whole: Storage) -> None:
        """Replace the slices of x by views of ``whole``, a storage with all of x; the views keep it alive."""
        for at, start, size in self._places(x):
            x.drop_part(at)
            x.put_part(at, narrowed(self.executor, whole, start, size))
        whole.release()

    @property
    def pending(self) -> bool:
        """True if operations are queued."""
        return bool(self._queue)

    def flush(self) -> None:
        """Run all queued calls. Raises the error of the first one that fails; then all their outputs are lost."""
        self._queue.flush()

    def _whole(self, x: Storage) -> Storage:
        """Return a storage with all of x, whose slices become views of it. Raises UserError if x has no value."""
        if not isinstance(x, Logical):
            return x
        if x.pending:
            self.flush()
        if not x.sizes:
            return x.part(0)
        whole = self._joined(x)
        if x.divided:
            self._lent.append(whole)
            return whole
        self._become_views(x, whole)  # the views keep it alive
        return whole

    def _give_back(self) -> None:
        """Release the copies of divided tensors that a call has read."""
        lent, self._lent = self._lent, []
        for whole in lent:
            whole.release()

    def _joined(self, x: Logical) -> Storage:
        """Return all slices of x in one storage, which the caller releases: a concatenation, or the slices' base."""
        parts = tuple([x.part(i) for i in range(len(x.parts))])
        base = parts[0].base
        if all(part.base is base for part in parts) and base.meta.shape == x.meta.shape:
            base.retain()
            return base
        with ungraded(self.executor):
            return gathered(self.executor, parts, x.sizes, self.consensus)

    def real(self, x: Storage) -> Storage:
        """Return a storage with all of the tensor x, which the caller releases."""
        whole = self._whole(x)
        whole.retain()
        return whole

    def _taken(self, x: Storage) -> Storage:
        """Return a storage with all of x, which the caller releases. The slices of x become views of it.
        A whole tensor made by queued calls (a ``Logical`` without sizes) with one handle loses its value."""
        whole = self.real(x)
        if isinstance(x, Logical) and not x.sizes and x.refs == 1:
            x.drop()
        return whole

    def look(self, x: Logical, read: Callable[[Storage], Any], *, joined: bool) -> Any:
        """Return ``read`` of the slices joined in one storage (``joined``), or of each slice, concatenated on the host.
        Ranks always join them. Raises UserError for a tensor without a value, OutOfMemory."""
        if joined or x.sizes and self.ranks is not None:
            whole = self.real(x)
            try:
                return read(whole)
            finally:
                whole.release()
                self._give_back()
        if x.pending:
            self.flush()
        arrays = [read(x.part(i)) for i in range(len(x.parts))]
        return np.concatenate(arrays) if x.sizes else arrays[0]
