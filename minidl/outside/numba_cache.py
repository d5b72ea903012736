"""Numba's compiler, whose results are kept on disk with a checksum: damaged machine code is compiled anew, never run.

By itself Numba unpickles and runs whatever its files hold; one damaged byte is a crash of the interpreter. Here each
file of its cache ends with the SHA-256 of what comes before, behind the end of the pickle, where Numba does not look.
A file whose sum does not agree, or that has none, counts as not there.

Everything that minidl compiles for the CPU is compiled through here. This imports Numba: import it only where that is
wanted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile

from minidl.outside.reading import Unreadable, read_bytes

SUM_BYTES = 32
MOST_FILE_BYTES = 1 << 30


class CheckedFiles(IndexDataCacheFile):
    """The files in which Numba keeps one function: an index, and machine code for each combination of types."""

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code. A disk that is full or read-only costs time in the next process, nothing else."""
        with suppress(OSError):
            super().save(key, data)

    def _load_index(self) -> Any:
        return super()._load_index() if _is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not _is_whole(self._data_path(name)):
            raise FileNotFoundError(name)  # what Numba takes for an entry that is gone
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[BytesIO]:
        content = BytesIO()
        yield content
        data = content.getvalue()
        with super()._open_for_write(path) as file:
            file.write(data + sha256(data).digest())


def _is_whole(path: str) -> bool:
    try:
        data = read_bytes(Path(path), most=MOST_FILE_BYTES)
    except Unreadable:
        return False
    return sha256(data[:-SUM_BYTES]).digest() == data[-SUM_BYTES:]


def njit(*, cache: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit``, with what it compiles kept on disk and checked."""
    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(cache=cache, **options)(function)
        kept = getattr(dispatcher, "_cache", None)  # there is none where Numba is told not to compile
        files = getattr(kept, "_cache_file", None)
        if kept is not None and files is not None:
            kept._cache_file = CheckedFiles(kept.cache_path, kept._impl.filename_base, files._source_stamp)
        return dispatcher

    return decorate


class _Counter(event.Listener):
    """Counts the functions that Numba compiles; those that are compiled for another one count with it."""

    def __init__(self, tell: Callable[[int], None], then: Callable[[], object] = lambda: None) -> None:
        self._tell = tell
        self._then = then  # is called after each
        self._depth = self._count = 0

    def on_start(self, event: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._count += 1
            self._tell(self._count)

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._then()


# The compiler leaves cycles behind, whose frames hold on to those of its callers, and so to the tensors of an operation
# whose kernel is compiled when it is first called. Their memory may be wanted before Python looks for cycles by itself.
event.register("numba:compile", _Counter(lambda count: None, then=gc.collect))


@contextmanager
def counted(tell: Callable[[int], None]) -> Iterator[None]:
    """Whenever Numba begins to compile one more function inside, ``tell`` is called with their number so far.

    What is found on disk does not count. The call comes from the thread that compiles; only one does at a time.
    """
    with event.install_listener("numba:compile", _Counter(tell)):
        yield
