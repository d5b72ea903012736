"""A simulator that runs the sources of CUDA kernels as Python, thread by thread, and checks every access.

  order     threads run to the next barrier one after another, in ascending order in one phase and descending in the
            next (``flipped``: the reverse). If a barrier is missing, a thread reads a value too early or too late
  memory    shared and local arrays start as NaN; a pointer reaches tensors and workspace and nothing between them
  counting  counts how often each byte of memory is read and written

Knows nothing of what kernels compute.
"""

import threading
from functools import cache
from math import erf, erfc
from types import SimpleNamespace

import numpy as np

from minidl.kernels.cuda.launch import DeviceFunction, Launcher
from minidl.kernels.cuda.tools import Tools

DTYPES = {"bfloat16": "uint16"}  # dtypes whose pointers have another element type


def poisoned(shape, dtype):
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(0xFF)
    return array


class Memory:
    """The bytes of a device, which of them belong to a tensor, and how often each was read and written."""

    def __init__(self, nbytes, *, counting=False):
        raw = np.empty(nbytes + 256, np.uint8)
        start = -raw.ctypes.data % 256
        self.bytes = raw[start:start + nbytes]
        self.bytes.fill(0xFF)
        self.base = self.bytes.ctypes.data
        self.owned = np.zeros(nbytes, bool)
        self.reads = np.zeros(nbytes, np.int32) if counting else None
        self.writes = np.zeros(nbytes, np.int32) if counting else None
        self._top = 0

    def take(self, nbytes):
        """Return the address of ``nbytes`` new bytes, followed by a gap that belongs to no tensor."""
        at, self._top = self._top, -(-(self._top + nbytes) // 256) * 256 + 256
        assert self._top <= self.bytes.size, "the simulated memory is too small"
        self.owned[at:at + nbytes] = True
        return self.base + at


class Span:
    """A pointer: elements of one dtype from an address on."""

    def __init__(self, memory, address, dtype):
        start = address - memory.base
        self._itemsize = np.dtype(dtype).itemsize
        assert start % self._itemsize == 0, f"address {address} is not aligned for {dtype}"
        length = (memory.bytes.size - start) // self._itemsize * self._itemsize
        self._values = memory.bytes[start:start + length].view(dtype)
        self._memory, self._start = memory, start

    def _check(self, index, what, counts):
        at = self._start + int(index) * self._itemsize
        if index < 0 or not self._memory.owned[at:at + self._itemsize].all():
            raise IndexError(f"{what} of element {index} is outside of all tensors")
        if counts is not None:
            counts[at:at + self._itemsize] += 1

    def aligned(self, index, count):
        """Raise AssertionError unless ``count`` elements from here on are one aligned access of the hardware."""
        nbytes = count * self._itemsize
        assert nbytes in (8, 16) and (self._start + int(index) * self._itemsize) % nbytes == 0, (
            f"{nbytes} bytes at {self._start + int(index) * self._itemsize}")

    def __getitem__(self, index):
        self._check(index, "a read", self._memory.reads)
        return self._values[index]

    def __setitem__(self, index, value):
        self._check(index, "a write", self._memory.writes)
        if self._values.dtype == np.float16 and value != value:  # GPUs convert every NaN to this one
            self._values.view(np.uint16)[index] = 0x7FFF
        else:
            self._values[index] = value


class Worker(threading.Thread):
    """One thread of a block, which runs only between ``resume`` and its next barrier."""

    def __init__(self, simulator):
        super().__init__(daemon=True)
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.simulator, self.task, self.error, self.finished = simulator, None, None, True
        self.start()

    def run(self):
        with np.errstate(all="ignore"):
            while True:
                self.go.acquire()
                try:
                    self.task()
                except BaseException as error:  # handed to the thread that launched
                    self.error = error
                self.finished = True
                self.back.release()

    def resume(self):
        """Run the thread to its next barrier, or to its end."""
        self.go.release()
        self.back.acquire()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def barrier(self):
        self.back.release()
        self.go.acquire()


class Simulator(Launcher):
    def __init__(self, memory, *, flipped=False):
        self.memory, self.flipped = memory, flipped
        self.launches = []
        self.uploads = 0
        self.threads = 0  # threads that have run
        self._current = None
        self._shared, self._taken = [], {}
        self.cuda = SimpleNamespace(
            threadIdx=SimpleNamespace(x=0), blockIdx=SimpleNamespace(x=0), syncthreads=self._barrier,
            shared=SimpleNamespace(array=self._shared_array), local=SimpleNamespace(array=poisoned))
        math = SimpleNamespace(exp=np.exp, log=np.log, sqrt=np.sqrt, tanh=np.tanh, cos=np.cos, erfc=erfc, pow=np.power,
                               log1p=np.log1p, sin=np.sin, erf=erf, floor=np.floor, expm1=np.expm1)
        self.tools = Tools(self.cuda, lambda function: function, math, int)
        self.tools.group = cache(self._group)

    def _group(self, dtype, count):
        """``Tools.group`` with checks of alignment, because on a GPU its loads and stores are single instructions."""
        load, store = Tools._group(self.tools, dtype, count)

        def checked(move):
            def run(pointer, i, values, at):
                pointer.aligned(i * count, count)
                move(pointer, i, values, at)
            return run
        return checked(load), checked(store)

    def upload(self, address, data):
        at = address - self.memory.base
        assert data.flags.c_contiguous and self.memory.owned[at:at + data.nbytes].all()
        self.memory.bytes[at:at + data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
        self.uploads += 1

    def launch(self, source: DeviceFunction, blocks, arguments):
        assert len(arguments) == len(source.signature)
        assert hash(source) == hash(source) and source.name
        values = []
        for kind, value in zip(source.signature, arguments, strict=True):
            if kind.startswith("*"):
                assert type(value) is int
                values.append(Span(self.memory, value, DTYPES.get(kind[1:], kind[1:])))
            else:
                assert isinstance(value, np.generic) and value.dtype.name == kind, (kind, type(value))
                values.append(value)
        self.launches.append(source)
        kernel = source.make(self.tools, **dict(source.options))
        self.run(kernel, blocks, source.threads, values)

    def run(self, kernel, blocks, threads, values):
        try:
            with np.errstate(all="ignore"):
                for block in range(blocks):
                    self.cuda.blockIdx.x = block
                    self._shared, self._taken = [], {}
                    self._block(kernel, threads, values)
        except BaseException:
            POOL.clear()  # some of its threads wait at a barrier for ever
            raise
        self.threads += blocks * threads

    def _block(self, kernel, threads, values):
        pool, downwards = workers(self, threads), self.flipped
        first, *others = reversed(range(threads)) if downwards else range(threads)
        self._resume(first, pool[first], lambda: kernel(*values))
        if pool[first].finished:  # no barrier: the others need no threads of their own
            self._current = None
            for thread in others:
                self.cuda.threadIdx.x = thread
                kernel(*values)
            return
        for thread in others:
            self._resume(thread, pool[thread], lambda: kernel(*values))
        downwards = not downwards
        while not all(w.finished for w in pool):
            assert not any(w.finished for w in pool), "some threads wait at a barrier that others do not reach"
            for thread in reversed(range(threads)) if downwards else range(threads):
                self._resume(thread, pool[thread])
            downwards = not downwards

    def _resume(self, thread, worker, task=None):
        self.cuda.threadIdx.x = thread
        self._current = worker
        if task is not None:
            assert worker.finished
            worker.task, worker.finished = task, False
        worker.resume()

    def _barrier(self):
        assert self._current is not None, "a barrier that the first thread of the block did not reach"
        self._current.barrier()

    def _shared_array(self, shape, dtype):
        """Return a thread's k-th shared array, which is the block's k-th."""
        number = self._taken.get(self.cuda.threadIdx.x, 0)
        self._taken[self.cuda.threadIdx.x] = number + 1
        if number == len(self._shared):
            self._shared.append(poisoned(shape, dtype))
        return self._shared[number]


POOL = []


def workers(simulator, count):
    while len(POOL) < count:
        POOL.append(Worker(simulator))
    return POOL[:count]
