"""Mistakes that managing could make, planted one at a time: random programs must find each.

Import it after ``pytest.importorskip("torch")``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from minidl.torch import items, replay, schemas


@contextmanager
def _as_it_is(drawn: Any) -> Iterator[None]:
    yield


def _at_the_beginning(handle: Any) -> torch.Tensor:
    with mock.patch.object(handle, "offset", 0):
        return _tensor(handle)


def _in_order(handle: Any) -> torch.Tensor:
    with mock.patch.object(handle, "stride", torch.empty(handle.size, device="meta").stride()):
        return _tensor(handle)


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _of_any_version(item: Any, storage: Any, version: int, forget: Any) -> None:
    _item(item, storage, version, forget)
    item.version = _Any()


def _in_place(self: Any, ref: Any, state: Any) -> Any:
    storage = _storage(self, ref._replace(written=False), state)
    if ref.written and not ref.scratch:
        state.scratch[ref.value] = storage
    return storage


_tensor, _item, _storage = items.Handle.tensor, items.Item.__init__, replay.Replay._storage

MUTANTS: dict[str, Callable[[], Any]] = {
    "replays draw new random numbers": lambda: mock.patch.object(replay, "_drawing", _as_it_is),
    "conjugate bits are lost": lambda: mock.patch.object(items, "CONJUGATE", 0),
    "replays write running statistics": lambda: mock.patch.dict(schemas.STATISTICS, clear=True),
    "offsets are lost": lambda: mock.patch.object(items.Handle, "tensor", _at_the_beginning),
    "strides are lost": lambda: mock.patch.object(items.Handle, "tensor", _in_order),
    "a storage holds one value for ever": lambda: mock.patch.object(items.Item, "__init__", _of_any_version),
    "replays write into what they read": lambda: mock.patch.object(replay.Replay, "_storage", _in_place),
}
