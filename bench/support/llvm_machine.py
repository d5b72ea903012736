"""Compiled kernels without a GPU: LLVM's intermediate form of a source, as Numba's CUDA compiler emits it, on the CPU.

So the compiler's integer widths and conversions are executed; the simulators execute the Python source. The modules of
a kernel are rewritten as text. Pointers lose their types and address spaces, since the CPU has one space. Reads of the
thread's and the block's number, and the barrier, become calls of functions here. Threads of a block run one after the
other; with a barrier each is a thread of Python's, and they run one at a time from one barrier to the next. PTX's
conversions of float16 become calls, too. PTX's pairs of bfloat16, which exist since Ampere, cannot run, so sources are
compiled for an earlier architecture.

A launcher (``kernels.cuda.launch.Launcher``) on addresses of this process. Needs numba-cuda; knows no device.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from minidl.kernels.cuda.launch import DeviceFunction

CAPABILITY = (7, 5)
MOST_SECONDS = 60.0  # of a thread, from one barrier to the next
POINTER = re.compile(r'(?:\b(?:i\d+|float|double|half|void|ptr)|%"[^"]+"|\{[^{}*]*\}|\[[^\[\]*]*\]|<[^<>*]*>)'
                     r"(?: addrspace\(\d+\))?\*")
WIDTHS = {"int64": ctypes.c_int64, "int32": ctypes.c_int32, "float32": ctypes.c_float, "float64": ctypes.c_double}
_engines: list[Any] = []
MATH = re.compile(r'declare [^@]*@"?__nv_(\w+)"?\(')  # functions of libdevice, by their names in C
_where = threading.local()  # block and thread of the running function


class LlvmMachine:
    """Runs kernel sources on addresses of this process. blocks: which blocks of a launch run; None: all."""

    def __init__(self, blocks: Iterable[int] | None = None) -> None:
        self.blocks = None if blocks is None else list(blocks)
        self.launches: list[DeviceFunction] = []

    def launch(self, source: DeviceFunction, blocks: int, arguments: Sequence[int | np.generic]) -> None:
        """Run a kernel, one block after the other."""
        self.launches.append(source)
        run, meets = _compiled(source)
        given = [a if isinstance(a, int) else a.item() for a in arguments]
        for block in range(blocks) if self.blocks is None else self.blocks:
            assert 0 <= block < blocks, f"block {block} of {blocks}"
            if meets:
                _by_phases(run, block, source.threads, given)
            else:
                for thread in range(source.threads):
                    _where.block, _where.thread = block, thread
                    run(*given)

    def upload(self, address: int, data: np.ndarray) -> None:
        """Copy a contiguous array to an address."""
        ctypes.memmove(address, data.ctypes.data, data.nbytes)


class _Turn(threading.Thread):
    """A thread of a block, which runs when it is its turn, to its next barrier or to its end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.task: Callable[[], None] = lambda: None
        self.waits = False  # at a barrier
        self.start()

    def run(self) -> None:
        _where.turn = self
        while True:
            self.go.acquire()
            self.task()
            self.waits = False
            self.back.release()

    def resume(self) -> None:
        self.go.release()
        assert self.back.acquire(timeout=MOST_SECONDS), f"a thread ran for {MOST_SECONDS:.0f} s"

    def meet(self) -> None:
        self.waits = True
        self.back.release()
        self.go.acquire()


_turns: list[_Turn] = []


def _by_phases(run: Callable[..., None], block: int, threads: int, given: Sequence[Any]) -> None:
    """Run one block whose threads wait for each other: all threads run to the barrier, then all to the next one.

    The threads take their turns in ascending order before one barrier, and in descending order before the next.
    """
    _turns.extend(_Turn() for _ in range(threads - len(_turns)))
    turns = _turns[:threads]

    def task(thread: int) -> None:
        _where.block, _where.thread = block, thread
        run(*given)
    for thread, turn in enumerate(turns):
        turn.task = partial(task, thread)
    order = turns
    while True:
        for turn in order:
            turn.resume()
        waiting = sum(turn.waits for turn in turns)
        if not waiting:
            return
        if waiting < threads:
            _turns.clear()  # some of them wait for ever
            raise AssertionError(f"block {block}: {waiting} of {threads} threads came to a barrier")
        order = order[::-1]


# What kernels call -------------------------------------------------------------------------------------------------
def _half(number: float) -> int:
    """Return the 16 bits of the float16 nearest to a number; for NaN those that GPUs produce."""
    with np.errstate(over="ignore"):
        return 0x7FFF if number != number else int(np.float32(number).astype(np.float16).view(np.uint16))


def _widened(bits: int) -> float:
    return float(np.uint16(bits).view(np.float16))


_number = ctypes.CFUNCTYPE(ctypes.c_int32)
HALVES = {"cvt.f32.f16": "half.widened", "cvt.rn.f16.f32": "half.rounded"}  # PTX, and what it is called here
ASSEMBLY = re.compile(r'asm\s+"(' + "|".join(map(re.escape, HALVES)) + r') \$0, \$1;", "[^"]*"')
CALLS = {"llvm.nvvm.read.ptx.sreg.tid.x": _number(lambda: _where.thread),
         "llvm.nvvm.read.ptx.sreg.ctaid.x": _number(lambda: _where.block),
         **{f"llvm.nvvm.read.ptx.sreg.{name}.{axis}": _number(lambda: 0) for name in ("tid", "ctaid") for axis in "yz"},
         "half.widened": ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_uint16)(_widened),
         "half.rounded": ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_float)(_half),
         "llvm.nvvm.barrier0": ctypes.CFUNCTYPE(None)(lambda: _where.turn.meet())}


def _ours(name: str) -> str:
    """Return the name of the function here that stands in for a function of the GPU that LLVM does not know."""
    return "minidl." + name.removeprefix("llvm.nvvm.")


# Compiling ---------------------------------------------------------------------------------------------------------
@cache
def _known() -> None:
    """Register the functions that kernels call with LLVM, for every compiler of this process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, function in CALLS.items():
        llvm.add_symbol(_ours(name), ctypes.cast(function, ctypes.c_void_p).value)


@cache
def _compiled(source: DeviceFunction) -> tuple[Callable[..., None], bool]:
    """Compile a kernel; return it as a function, and True if its threads wait at barriers."""
    from minidl.kernels.cuda.compile import intermediate  # which imports CUDA

    texts = intermediate(source, CAPABILITY)
    found = re.search(r'define void @"([^"]+)"', texts[0])
    assert found is not None, source.name
    modules = [llvm.parse_assembly(rewritten(text)) for text in texts]
    for module in modules[1:]:
        modules[0].link_in(module)
    modules[0].verify()
    _known()
    library = ctypes.CDLL("libm.so.6")
    for name in {name for text in texts for name in MATH.findall(text)}:
        llvm.add_symbol(f"__nv_{name}", ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    # One of its own for each kernel: shared memory of several has one name, and would be one, as large as the first.
    engine = llvm.create_mcjit_compiler(modules[0], llvm.Target.from_default_triple().create_target_machine(opt=1))
    engine.finalize_object()
    _engines.append(engine)  # the code lives as long as it does
    kinds: list[Any] = [ctypes.c_void_p if kind.startswith("*") else WIDTHS[kind] for kind in source.signature]
    function = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(found[1]))
    return function, any("llvm.nvvm.barrier0" in text for text in texts)


def rewritten(text: str) -> str:
    """Rewrite the text of a module so that the CPU's LLVM accepts it.

    It has one kind of pointer and one address space, and calls the functions here in place of a GPU's instructions.
    """
    text = "\n".join(line for line in text.splitlines()
                     if not line.startswith(("target ", "!nvvm")) and '!"kernel"' not in line)
    before = ""
    while text != before:  # from the inside: a pointer to a structure of pointers
        before, text = text, POINTER.sub("ptr", text)
    text = re.sub(r" addrspace\(\d+\)", "", text).replace("addrspacecast", "bitcast")
    called = {name: f'declare {kind} @"{_ours(name)}"({given})'
              for name, kind, given in (("half.widened", "float", "i16"), ("half.rounded", "i16", "float"))}
    text = ASSEMBLY.sub(lambda found: f'@"{_ours(HALVES[found[1]])}"', text)
    text += "".join(f"\n{line}" for name, line in called.items() if _ours(name) in text)
    for name in CALLS:
        text = text.replace(f'@"{name}"', f'@"{_ours(name)}"')
    return text
