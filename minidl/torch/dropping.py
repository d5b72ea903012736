"""Drops and replays: records lineage during the forward pass, and recomputes dropped tensors when they are needed.

A tensor is dropped only if its replay is exact; otherwise it is swapped. If the program is about to overwrite bytes
that the replay of a dropped tensor reads, the tensor is recomputed first and swapped out.
"""

import weakref
from typing import Any

import torch

from minidl.torch.backends import quiet
from minidl.torch.items import Item
from minidl.torch.lineage import Value
from minidl.torch.recorder import Recorder
from minidl.torch.replay import NotReplayable, Replay, missing
from minidl.torch.saved import Saved


class Dropping:
    """Lets a step drop and replay saved tensors (``Saved``), by the calls that computed them (``Recorder``)."""

    def __init__(self, saved: Saved, recorder: Recorder) -> None:
        self.saved, self.recorder = saved, recorder
        self.replay = Replay(saved.fetch)
        self._dropped: weakref.WeakSet[Item] = weakref.WeakSet()
        saved.recompute = self._recompute
        recorder.before_write = self._before_write

    def begin(self, replayed: frozenset[int]) -> None:
        """Begin a step that drops tensors: record lineage. replayed: numbers of the calls that its replays run."""
        self.recorder.only = replayed
        self.saved.lineage, self.saved.forward = self._lineage, self.forward
        self.recorder.on = self.recorder.lineage = True

    def end(self) -> None:
        """Begin a step that drops no tensors: record no lineage."""
        self.saved.lineage = self.saved.forward = None
        self.recorder.lineage, self.recorder.only = False, None

    def rest(self) -> None:
        """Stop recording calls while an optimizer steps, unless autograd still holds saved tensors.
        Recording also goes on before autograd saves the step's first tensor, since an optimizer's closure may
        compute the loss."""
        if self.saved.packs and self.recorder.lineage and torch._C._current_graph_task_id() == -1 and (
                not self.saved.holds()):
            self.recorder.leave()

    def forward(self, on: bool) -> None:
        """Record calls from now on if ``on``, outside of backward passes; else only call ``before_write``."""
        if self.recorder.unfit:
            self.recorder.leave()
        self.recorder.on = on and torch._C._current_graph_task_id() == -1

    def _lineage(self, item: Item, drop: bool) -> Any:
        """Return the value from which an item that the plan drops can be replayed; None if it has to be swapped."""
        storage = item.alive()
        assert storage is not None
        value = self.recorder.held(storage) or self.recorder.hold(storage, None)
        value.item = weakref.ref(item)
        if drop and value.made is not None and _can_be_made(value):
            self._dropped.add(item)
            return value
        value.kept_by(item)
        return None

    def _recompute(self, item: Item) -> Any:
        return self.replay.again(item.value)

    def _before_write(self, leaf: Value) -> None:
        """Called before ``leaf`` is overwritten: recompute the dropped items whose replays read it, and swap them out.
        """
        for item in list(self._dropped):
            # The program may still hold the bytes; it may release them after the write.
            if item.handles and item.storage is None and item.copy is None and leaf in _leaves(item.value):
                with quiet():
                    self.saved.fetch(item)
                    item.copy = self.saved.backend.out(item.storage)
                    if item.copy is not None:
                        item.storage = None


def _can_be_made(value: Value) -> bool:
    try:
        missing(value, later=True)
    except NotReplayable:
        return False
    return True


def _leaves(value: Value) -> set[Value]:
    """Return the values from which a replay of ``value`` starts: those that it reads and that no recorded call made."""
    return {read for call in missing(value, later=True) for read in call.reads if read.made is None}
