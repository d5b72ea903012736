"""Compiled kernels without a GPU: LLVM's intermediate form of a source, as Numba's CUDA compiler emits it, on the CPU.

So the widths and conversions of the compiler's integers are what runs, where the simulators run the Python source. The
modules of a kernel are rewritten as text: pointers lose their types and address spaces, of which the CPU has one; what
names a thread or a block, and the barrier, become calls of functions here. Threads of a block follow one another; where
there is a barrier each is a thread of Python's, and all meet there. What is left of PTX (bfloat16's pairs since Ampere)
cannot run: sources are compiled for an architecture before that.

A launcher (``kernels.cuda.launch.Launcher``) on addresses of this process. Needs numba-cuda; knows no device.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from minidl.kernels.cuda.launch import Source

CAPABILITY = (7, 5)
BARRIER_SECONDS = 60.0  # until a block counts as one whose threads do not all come to the barrier
POINTER = re.compile(r'(?:\b(?:i\d+|float|double|half|void|ptr)|%"[^"]+"|\{[^{}*]*\}|\[[^\[\]*]*\]|<[^<>*]*>)'
                     r"(?: addrspace\(\d+\))?\*")
WIDTHS = {"int64": ctypes.c_int64, "int32": ctypes.c_int32, "float32": ctypes.c_float, "float64": ctypes.c_double}
MATH = {"expf": 1, "exp": 1, "logf": 1, "log": 1, "sqrtf": 1, "sqrt": 1, "tanhf": 1, "tanh": 1, "erff": 1, "erf": 1,
        "fabsf": 1, "fabs": 1, "cosf": 1, "cos": 1, "fmaf": 3, "fma": 3}  # of libdevice, by their names in C
_where = threading.local()  # block and thread of whoever runs


class LlvmMachine:
    """Runs sources on addresses of this process. ``blocks``: those of a launch that run; None: all."""

    def __init__(self, blocks: Iterable[int] | None = None) -> None:
        self.blocks = None if blocks is None else list(blocks)
        self.launches: list[Source] = []

    def launch(self, source: Source, blocks: int, arguments: Sequence[int | np.generic]) -> None:
        """Run a kernel, block after block."""
        self.launches.append(source)
        run, meets = _compiled(source)
        given = [a if isinstance(a, int) else a.item() for a in arguments]
        for block in range(blocks) if self.blocks is None else self.blocks:
            assert 0 <= block < blocks, f"block {block} of {blocks}"
            if meets:
                _together(run, block, source.threads, given)
            else:
                for thread in range(source.threads):
                    _where.block, _where.thread = block, thread
                    run(*given)

    def upload(self, address: int, data: np.ndarray) -> None:
        """Copy a contiguous array to an address."""
        ctypes.memmove(address, data.ctypes.data, data.nbytes)


def _together(run: Callable[..., None], block: int, threads: int, given: Sequence[Any]) -> None:
    """One block whose threads wait for each other."""
    barrier, failed = threading.Barrier(threads), []

    def one(thread: int) -> None:
        _where.block, _where.thread, _where.barrier = block, thread, barrier
        try:
            run(*given)
        except BaseException as error:  # raised below
            failed.append(error)
            barrier.abort()
    every = [threading.Thread(target=one, args=(thread,)) for thread in range(threads)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    if failed or barrier.broken:
        raise AssertionError(f"block {block}: not all {threads} threads came to a barrier {failed}")


# What kernels call -------------------------------------------------------------------------------------------------
def _meet() -> None:
    with suppress(threading.BrokenBarrierError):  # told by _together: nothing may be raised through compiled code
        _where.barrier.wait(BARRIER_SECONDS)


_number = ctypes.CFUNCTYPE(ctypes.c_int32)
CALLS = {"llvm.nvvm.read.ptx.sreg.tid.x": _number(lambda: _where.thread),
         "llvm.nvvm.read.ptx.sreg.ctaid.x": _number(lambda: _where.block),
         **{f"llvm.nvvm.read.ptx.sreg.{name}.{axis}": _number(lambda: 0) for name in ("tid", "ctaid") for axis in "yz"},
         "llvm.nvvm.barrier0": ctypes.CFUNCTYPE(None)(_meet)}


def _ours(name: str) -> str:
    """What a function that the GPU has is called here: no name that LLVM gives a meaning to."""
    return "minidl." + name.removeprefix("llvm.nvvm.")


# Compiling ---------------------------------------------------------------------------------------------------------
@cache
def _engine() -> Any:
    """The compiler of this machine, which knows what kernels call."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, function in CALLS.items():
        llvm.add_symbol(_ours(name), ctypes.cast(function, ctypes.c_void_p).value)
    library = ctypes.CDLL("libm.so.6")
    for name in MATH:
        llvm.add_symbol(f"__nv_{name}", ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@cache
def _compiled(source: Source) -> tuple[Callable[..., None], bool]:
    """A kernel as a function, and whether its threads meet at barriers."""
    from minidl.kernels.cuda.compile import intermediate  # which imports CUDA

    texts = intermediate(source, CAPABILITY)
    found = re.search(r'define void @"([^"]+)"', texts[0])
    assert found is not None, source.name
    modules = [llvm.parse_assembly(rewritten(text)) for text in texts]
    for module in modules[1:]:
        modules[0].link_in(module)
    modules[0].verify()
    engine = _engine()
    engine.add_module(modules[0])
    engine.finalize_object()
    kinds: list[Any] = [ctypes.c_void_p if kind.startswith("*") else WIDTHS[kind] for kind in source.signature]
    function = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(found[1]))
    return function, any("llvm.nvvm.barrier0" in text for text in texts)


def rewritten(text: str) -> str:
    """A module as the CPU's LLVM reads it: one kind of pointer, one address space, and calls of what stands in for a
    GPU."""
    text = "\n".join(line for line in text.splitlines()
                     if not line.startswith(("target ", "!nvvm")) and '!"kernel"' not in line)
    before = ""
    while text != before:  # from the inside: a pointer to a structure of pointers
        before, text = text, POINTER.sub("ptr", text)
    text = re.sub(r" addrspace\(\d+\)", "", text).replace("addrspacecast", "bitcast")
    for name in CALLS:
        text = text.replace(f'@"{name}"', f'@"{_ours(name)}"')
    return text
