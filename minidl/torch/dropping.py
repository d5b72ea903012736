"""Steps in which something is dropped: lineage is recorded in forward, and replays make dropped tensors again.

A tensor is dropped only if all that makes it again can be repeated exactly; else it is swapped. What was dropped and
starts from bytes that are about to be written over is made at once, and swapped.
"""

from __future__ import annotations

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
    """Ties saved tensors to a recorder's values."""

    def __init__(self, saved: Saved, recorder: Recorder) -> None:
        self.saved, self.recorder = saved, recorder
        self.replay = Replay(saved.fetch)
        self._dropped: weakref.WeakSet[Item] = weakref.WeakSet()
        saved.recompute = self._recompute
        recorder.before_write = self._before_write

    def begin(self, replayed: frozenset[int]) -> None:
        """A step that drops. replayed: numbers of the calls that replays will want."""
        self.recorder.only = replayed
        self.saved.lineage, self.saved.forward = self._lineage, self.forward
        self.recorder.on = self.recorder.lineage = True

    def end(self) -> None:
        """One that does not."""
        self.saved.lineage = self.saved.forward = None
        self.recorder.lineage, self.recorder.only = False, None

    def rest(self) -> None:
        """An optimizer steps: unless something dropped is still wanted its calls are not looked at, nor before anything
        is saved: it may compute the loss itself."""
        if self.saved.packs and self.recorder.lineage and torch._C._current_graph_task_id() == -1 and not any(
                item.handles for item in self._dropped):
            self.recorder.leave()

    def forward(self, on: bool) -> None:
        """Whether the program is in a forward pass: backward passes are not recorded, but for what they write over."""
        self.recorder.on = on and torch._C._current_graph_task_id() == -1

    def _lineage(self, item: Item, drop: bool) -> Any:
        """The value of an item that is to be dropped; None if it has to be swapped."""
        storage = item.alive()
        assert storage is not None
        value = self.recorder.held(storage) or self.recorder.hold(storage, None)
        value.item = weakref.ref(item)
        if drop and value.made is not None and _can_be_made(value):
            self._dropped.add(item)
            return value
        value.release()
        return None

    def _recompute(self, item: Item) -> Any:
        return self.replay.again(item.value)

    def _before_write(self, leaf: Value) -> None:
        """What starts from a leaf is made before that is written over."""
        for item in list(self._dropped):
            if item.handles and item.here is None and item.copy is None and leaf in _leaves(item.value):
                with quiet():
                    self.saved.fetch(item)
                    item.copy = self.saved.backend.out(item.storage)
                    if item.copy is not None:
                        item.storage = None


def _can_be_made(value: Value) -> bool:
    try:
        missing(value)
    except NotReplayable:
        return False
    return True


def _leaves(value: Value) -> set[Value]:
    """The leaves that the missing calls of a value read."""
    return {read for call in missing(value) for read in call.reads if read.made is None}
