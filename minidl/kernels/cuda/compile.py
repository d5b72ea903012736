"""Compiles device functions to cubins: Numba makes NVIDIA's intermediate form, its linker machine code. Needs no GPU.

Cubins are cached on disk by everything they depend on: the function's name (with its dtypes, formula and block size),
the files of the device functions, the architecture, and the versions of the compilers.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.core import Kernel, Linker, LinkerOptions, ObjectCode
from numba import types

from minidl.errors import DeviceError
from minidl.kernels import random, scalar
from minidl.kernels.cuda.fast import words
from minidl.kernels.cuda.launch import DeviceFunction
from minidl.kernels.cuda.numba_cuda import compiler, cuda, dispatcher
from minidl.kernels.cuda.tools import Tools
from minidl.outside.reading import NotJson, Unreadable, parse_json, read_bytes

COMPILERS = ("numba", "numba-cuda", "cuda-core", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
MOST_CUBIN_BYTES = 1 << 28
POINTED = {"bfloat16": "uint16"}  # dtypes whose pointers have another element type in Numba
_lock = RLock()  # Numba reads the architecture from a global


@dataclass(frozen=True)
class Cubin:
    """The machine code of one kernel for one architecture, and the resources that a thread or a thread block takes."""

    entry: str  # the kernel's name in the code
    registers: int  # of a thread
    shared_bytes: int  # of a block
    stack_bytes: int  # of a thread, in memory: arrays that did not fit registers
    spill_bytes: int  # stores and loads of registers that did not fit
    code: bytes


def default_folder() -> Path:
    """Return the folder for cubins: ``$XDG_CACHE_HOME/minidl/cubins`` or ``~/.cache/minidl/cubins``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl" / "cubins"


class Compiler:
    """A compiler for one compute capability, such as (9, 0). folder: of cubins; None: the default one.
    keep: False neither reads nor writes that folder."""

    def __init__(self, capability: tuple[int, int], folder: Path | None = None, *, keep: bool = True) -> None:
        self.capability = capability
        self.architecture = f"sm_{capability[0]}{capability[1]}"
        self.folder = (folder or default_folder()) if keep else None
        self._tools = _tools(capability)

    def kernel(self, source: DeviceFunction) -> Kernel:
        """Return the loaded kernel of a device function; the context of a GPU of this capability must be current.

        Raises DeviceError if the driver rejects the machine code.
        """
        cubin = self.cubin(source)
        try:
            return ObjectCode.from_cubin(cubin.code).get_kernel(cubin.entry)
        except Exception as error:  # cuda.core has its own exception types
            raise DeviceError(f"loading {source.name} for {self.architecture}: {error}") from error

    def cubin(self, source: DeviceFunction) -> Cubin:
        """Return the machine code of a device function: from disk, or compiled now and stored there if ``keep`` is set.
        """
        key = sha256("\n".join((source.name, self.architecture, *_versions(), _source_digest())).encode()).hexdigest()
        path = None if self.folder is None else self.folder / f"{key}.cubin"
        if path is not None and (found := _read(path)) is not None:
            return found
        try:
            cubin = self._compiled(source)
        except Exception as error:
            error.add_note(f"in compiling {source.name} for {self.architecture}")
            raise
        if path is not None:
            _write(path, cubin)
        return cubin

    def _compiled(self, source: DeviceFunction) -> Cubin:
        function = source.make(self._tools, **dict(source.options))
        signature = types.void(*map(_type, source.signature))
        with _lock, _compiling_for(self.capability):
            # Only the linker resolves float16 and the functions of the mathematical library.
            objects, _ = cuda.compile_all(function, signature, cc=self.capability, device=False, abi="numba",
                                          output="ltoir")
        codes = [o if isinstance(o, ObjectCode) else ObjectCode.from_ltoir(o) for o in objects]
        linker = Linker(*codes, options=LinkerOptions(arch=self.architecture, link_time_optimization=True,
                                                      verbose=True, ptxas_options=["-v"]))
        code = linker.link("cubin").code
        assert isinstance(code, bytes)
        return _cubin_from_log(linker.get_info_log(), code)


def intermediate(source: DeviceFunction, capability: tuple[int, int]) -> list[str]:
    """Return LLVM's intermediate form of a device function: its kernel's module first, then the functions it calls.

    For tests: Numba has no public name for it.
    """
    compile_one = vars(compiler)["_compile_pyfunc_with_fixup"]
    function = source.make(_tools(capability), **dict(source.options))
    with _lock, _compiling_for(capability):
        library, _ = compile_one(function, types.void(*map(_type, source.signature)), debug=None, lineinfo=False,
                                 device=False, fastmath=False, cc=capability, opt=None, abi="numba", abi_info=None,
                                 forceinline=False, launch_bounds=None, lto=True)
    return [str(text) for text in library.llvm_strs]


@cache
def _tools(capability: tuple[int, int]) -> Tools:
    return Tools(cuda, cuda.jit(device=True), math, np.uint32, access=words.ACCESS,
                 pair=words.pair if capability >= words.PAIRS_SINCE else None)


def _type(kind: str) -> Any:
    """Return Numba's type for ``kind``, an entry of a signature: a pointer ("*float32") or a number ("int64")."""
    if kind.startswith("*"):
        return types.CPointer(getattr(types, POINTED.get(kind[1:], kind[1:])))
    return getattr(types, kind)


@contextmanager
def _compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    """Make Numba compile device functions for this capability instead of the current GPU's."""
    before = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = before


def _cubin_from_log(log: str, code: bytes) -> Cubin:
    """Return the kernel's code with the resources that the assembler's log reports."""
    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, log)))
    entries = re.findall(r"Compiling entry function '(\w+)'", log)
    assert len(entries) == 1, log
    return Cubin(entries[0], number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"),
                 number(r"(\d+) bytes stack frame"), number(r"(\d+) bytes spill (?:stores|loads)"), code)


@cache
def _versions() -> tuple[str, ...]:
    found = []
    for name in COMPILERS:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


@cache
def _source_digest() -> str:
    """Return a digest of all files that device functions are made of."""
    digest = sha256()
    here = Path(__file__).parent
    for file in (*sorted(here.rglob("*.py")), Path(scalar.__file__), Path(random.__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


# One file per cubin: a line of JSON, then the code. It gets its name when it is complete.
def _read(path: Path) -> Cubin | None:
    try:
        header, _, code = read_bytes(path, most=MOST_CUBIN_BYTES).partition(b"\n")
        facts = parse_json(header)
        return Cubin(**facts["facts"], code=code) if facts["sha256"] == _sum(facts["facts"], code) else None
    except (Unreadable, NotJson, KeyError, TypeError):
        return None  # missing or damaged: it is made again


def _sum(facts: Mapping[str, Any], code: bytes) -> str:
    return sha256(json.dumps(facts, sort_keys=True).encode() + code).hexdigest()


def _write(path: Path, cubin: Cubin) -> None:
    facts = asdict(cubin)
    code = facts.pop("code")
    header = json.dumps({"facts": facts, "sha256": _sum(facts, code)}).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(header + b"\n" + code)
        temporary.replace(path)
    except OSError:
        return  # a cache that cannot be written costs time, not results
