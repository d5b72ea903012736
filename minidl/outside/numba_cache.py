"""Numba's compiler with a checksummed disk cache: damaged machine code is compiled again and never runs.

Numba alone unpickles and runs whatever its cache files hold, and one damaged byte crashes the interpreter. Here each
cache file ends with the SHA-256 of its content, after the end of the pickle, where Numba does not read. A file without
a matching checksum counts as missing.

All code that minidl compiles for the CPU is compiled through this module. It imports Numba, which is slow.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile

from minidl.outside.reading import Unreadable, read_bytes
from minidl.outside.stages import COMPILATION, stage
from minidl.outside.writing import lock_folder

LOOK_AGAIN_SECONDS = 0.1  # after which a function that another process compiles is looked for again
SUM_BYTES = 32
MOST_FILE_BYTES = 1 << 30


class CheckedFiles(IndexDataCacheFile):
    """Numba's cache files of one function, with checksums: an index, and machine code per combination of types.
    compiler: the process that compiles this function and saves it in these files, if there is one."""

    compiler: Popen[bytes] | None = None

    def load(self, key: Any) -> Any:
        """Load the machine code for Numba's ``key``; None if there is none. Wait for it while ``compiler`` runs."""
        data, process = super().load(key), self.compiler
        if data is not None or process is None:
            return data
        with stage("waiting for functions that another process compiles, once on this machine"):
            while data is None and process.poll() is None:
                with suppress(TimeoutExpired):
                    process.wait(LOOK_AGAIN_SECONDS)
                data = super().load(key)
        return data

    def has(self, key: Any) -> bool:
        """True if there is machine code for Numba's ``key``; it is not loaded."""
        return key in self._load_index()

    def save(self, key: Any, data: Any) -> None:
        """Save machine code (``data``) under Numba's ``key``. A full or read-only disk saves nothing, without error."""
        with suppress(OSError):
            super().save(key, data)

    def _load_index(self) -> Any:
        return super()._load_index() if _is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not _is_whole(self._data_path(name)):
            raise FileNotFoundError(name)  # Numba then treats the entry as missing
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
    """Return a decorator, ``numba.njit`` with these options. cache: keep machine code on disk, with checksums."""
    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(cache=cache, **options)(function)
        kept = getattr(dispatcher, "_cache", None)  # None if Numba's compilation is disabled
        files = getattr(kept, "_cache_file", None)
        if kept is not None and files is not None:
            kept._cache_file = CheckedFiles(kept.cache_path, kept._impl.filename_base, files._source_stamp)
        return dispatcher

    return decorate


def on_disk(dispatcher: Any, arguments: tuple[Any, ...]) -> bool:
    """True if a function that ``njit`` has returned is compiled on disk for arguments of these types."""
    cache = dispatcher._cache
    key = cache._index_key(_types(arguments), dispatcher.targetctx.codegen())
    return bool(cache._cache_file.has(key))


def compile_for(dispatcher: Any, arguments: tuple[Any, ...]) -> None:
    """Compile a function that ``njit`` has returned for arguments of these types, and save it. It does not run."""
    dispatcher.compile(_types(arguments))


def expect(dispatcher: Any, process: Popen[bytes]) -> None:
    """Note that ``process`` compiles and saves this function, so that this process waits for it at its first call."""
    dispatcher._cache._cache_file.compiler = process


def lock_files(dispatcher: Any) -> None:
    """Lock the folder of the function's cache files until this process ends; wait while another process has the lock.
    Only processes that call this wait for each other."""
    with suppress(OSError):
        lock_folder(Path(dispatcher.stats.cache_path), wait=True)


def _types(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(numba.typeof(argument) for argument in arguments)


class _Counter(event.Listener):
    """A listener that counts the functions that Numba compiles; nested compilations count with the outer function."""

    def __init__(self, tell: Callable[[int], None], then: Callable[[], object] = lambda: None) -> None:
        self._tell = tell
        self._then = then  # called after each compilation
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


def _ended() -> None:
    """Note that a compilation has ended, and collect the compiler's reference cycles.
    They keep the callers' frames alive, and so the tensors of an operation whose kernel is compiled at its first call.
    The memory of these tensors may be needed before Python's next collection."""
    COMPILATION.end()
    gc.collect()


event.register("numba:compile", _Counter(COMPILATION.begin, then=_ended))
