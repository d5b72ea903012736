"""A device in NumPy on minidl's virtual clock, for lesson 10. It compiles nothing, and can leave out waits.

Like ``cpu:virtual`` it computes a kernel at the kernel's virtual start, and copies at the copy's virtual end: what the
waits allow to be late is late. It has the kernels that the training of a network of Linear and Tanh takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from minidl import nn, optim
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, STREAM_NAMES, Extents, Marks, Timed
from minidl.device.contract import Operand, Place, place
from minidl.device.profiles import named
from minidl.device.sim import SimDevice
from minidl.meta import Algorithm
from minidl.runtime import Runtime

Span = tuple[str, int, int]  # "device" or "host", the first byte, and the byte after the last one
Kernel = Callable[..., Any]

BATCH, WIDTH, LAYERS, CLASSES, STEPS = 256, 32, 6, 4, 40
HOST_BYTES = 1 << 24
UNMANAGED_BYTES = 317_184  # the peak of a step without a budget
POISON = 0xFF  # every float of these bytes is NaN
PROFILE = replace(named("cpu"), link_out_bandwidth=2e9, link_in_bandwidth=2e9)


@dataclass
class Work:
    """A kernel or a copy: when it runs, in seconds, and the bytes that it reads and writes.

    found  a checksum of each value that it read, once it has run
    """

    name: str
    stream: str
    start: float
    end: float
    reads: list[Span]
    writes: list[Span]
    found: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Training:
    """The loss of each step, and all work in the order in which it was issued."""

    losses: list[float]
    log: list[Work]


def _softmax(x: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(x - x.max(1, keepdims=True))
    powers /= powers.sum(1, keepdims=True)
    return powers


def _chosen(labels: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = np.eye(CLASSES, dtype="f4")[labels % CLASSES]  # labels may be bytes of something else
    return chosen


def _loss(x: np.ndarray, labels: np.ndarray, **_: Any) -> tuple[np.ndarray, np.ndarray]:
    p = _softmax(x)
    return -np.log((p * _chosen(labels)).sum(1)).mean(), p


# Sums by einsum: its order does not depend on the number of threads.
KERNELS: dict[str, Kernel] = {
    "upload": lambda data, **_: data,
    "full": lambda value, **_: np.float32(value),
    "linear": lambda x, w, b: np.einsum("ni,oi->no", x, w) + b,
    "linear_dgrad": lambda dy, w: np.einsum("no,oi->ni", dy, w),
    "linear_wgrad": lambda dy, x: np.einsum("no,ni->oi", dy, x),
    "bias_grad": lambda dy, axis: dy.sum(0),
    "tanh": np.tanh,
    "tanh_grad": lambda dy, y: dy * (1 - y * y),
    "cross_entropy": _loss,
    "cross_entropy_grad": lambda dy, p, labels, **_: dy * (p - _chosen(labels)) / np.float32(len(p)),
}


def _uniform(*tensors: np.ndarray, seed: int, low: float, high: float) -> None:
    for x in tensors:
        x[...] = np.random.default_rng(seed).uniform(low, high, x.shape)


def _sgd(*tensors: np.ndarray, lr: float, **_: Any) -> None:
    count = len(tensors) // 2
    for parameter, gradient in zip(tensors[:count], tensors[count:], strict=True):
        parameter -= np.float32(lr) * gradient


IN_PLACE: dict[str, Kernel] = {"uniform_": _uniform, "sgd_": _sgd}


def _span(at: Place) -> Span:
    start, meta = at
    return "device", start, start + meta.nbytes


class NumPyDevice(SimDevice):
    """A device with values. ``missing``: two streams (the one that waits, the one it waits for), whose waits are left
    out. ``poisoned``: freed bytes become NaN."""

    has_values = True

    def __init__(self, missing: tuple[int, int] | None = None, *, poisoned: bool = False) -> None:
        super().__init__("sim:numpy", PROFILE)
        self.missing, self.poisoned = missing, poisoned
        self.log: list[Work] = []
        self.memory: dict[str, np.ndarray] = {}

    def wait(self, stream: int, on: int, position: int) -> None:
        """Make later work of a stream wait, unless this wait is left out."""
        if (stream, on) != self.missing:
            super().wait(stream, on, position)

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Allocate the bytes of the device and of the host."""
        self.memory = {"device": np.zeros(budget_bytes, np.uint8), "host": np.zeros(host_bytes, np.uint8)}

    def _issue(self, name: str, stream: int, seconds: float, reads: list[Span], writes: list[Span],
               effect: Callable[[Work], None], timed: Timed = None) -> int:
        start = max(self.clock.ready[stream], self.clock.host)
        work = Work(name, STREAM_NAMES[stream], start, start + seconds, reads, writes)
        self.log.append(work)
        return self.clock.issue(stream, seconds, partial(effect, work), at_end=stream != COMPUTE, timed=timed)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Queue a kernel."""
        self.clock.host += self._launch_overhead_s
        made, read = list(map(place, outputs)), list(map(place, inputs))
        written = read if op_name in IN_PLACE else made
        effect = partial(self._run, op_name, made, read, attrs)
        return self._issue(op_name, COMPUTE, algorithm.seconds, list(map(_span, read)), list(map(_span, written)),
                           effect, timed)

    def _run(self, op_name: str, made: list[Place], read: list[Place], attrs: dict[str, Any], work: Work) -> None:
        values = [self._array(at) for at in read]
        work.found = [crc32(value.tobytes()) for value in values]
        with np.errstate(all="ignore"):  # the values of a training with a missing wait may be any
            if op_name in IN_PLACE:
                IN_PLACE[op_name](*values, **attrs)
                return
            results = KERNELS[op_name](*values, **attrs)
            for at, result in zip(made, results if isinstance(results, tuple) else (results,), strict=True):
                self._array(at)[...] = result

    def _array(self, at: Place) -> np.ndarray:
        _, start, end = _span(at)
        return self.memory["device"][start:end].view(at[1].dtype.name).reshape(at[1].shape)

    def _carry(self, work: Work) -> None:
        values = np.concatenate([self.memory[where][start:end] for where, start, end in work.reads])
        work.found = [crc32(values.tobytes())]
        for where, start, end in work.writes:
            self.memory[where][start:end], values = values[:end - start], values[end - start:]

    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Queue a copy within the device."""
        return self._issue("move", COMPUTE, self.move_seconds(nbytes), [("device", origin, origin + nbytes)],
                           [("device", to, to + nbytes)], self._carry)

    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        """Queue a copy to the host."""
        return self._issue("copy out", COPY_OUT, self.copy_seconds(COPY_OUT, host, nbytes),
                           [("device", offset, offset + nbytes)], [("host", at, at + size) for at, size in host],
                           self._carry, self._noting_copy(COPY_OUT, host, nbytes))

    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        """Queue a copy from the host."""
        return self._issue("copy in", COPY_IN, self.copy_seconds(COPY_IN, host, nbytes),
                           [("host", at, at + size) for at, size in host], [("device", offset, offset + nbytes)],
                           self._carry, self._noting_copy(COPY_IN, host, nbytes))

    def poison(self, offset: int, nbytes: int, marks: Marks) -> None:
        """Fill freed bytes with NaN when the streams have passed the marks, if the device is poisoned."""
        if self.poisoned:
            self.clock.when_passed(marks, partial(self.memory["device"][offset:offset + nbytes].fill, POISON))

    def read(self, operand: Operand) -> np.ndarray:
        """Return a copy of a tensor's value."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        for stream in (COPY_OUT, COPY_IN):  # what the compute stream was told to wait for, after its last kernel
            self.synchronize(stream, self._waited[COMPUTE][stream])
        return self._array(place(operand)).copy()

    def end_iteration(self) -> None:
        """Run all queued kernels."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        super().end_iteration()


def train(missing: tuple[int, int] | None = None, *, share: float = 0.5, poisoned: bool = False) -> Training:
    """Train in ``share`` of the bytes that the training takes unmanaged; from 1 on, without memory management."""
    device, random = NumPyDevice(missing, poisoned=poisoned), np.random.default_rng(0)
    centres = random.standard_normal((CLASSES, WIDTH))
    labels = random.integers(0, CLASSES, BATCH)
    inputs = centres[labels] + 1.5 * random.standard_normal((BATCH, WIDTH))
    losses = []
    with Runtime(device, policy="none" if share >= 1 else "capuchin-swap", host_memory=HOST_BYTES, seed=1,
                 memory_budget=HOST_BYTES if share >= 1 else int(share * UNMANAGED_BYTES)) as runtime:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        network = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
        optimizer = optim.SGD(network.parameters(), lr=0.3)
        x, y = runtime.tensor(inputs.astype("f4")), runtime.tensor(labels.astype("i4"))
        for _ in range(STEPS):
            with runtime.iteration():
                loss = nn.functional.cross_entropy(network(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.numpy()))
    return Training(losses, device.log)


def overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Return True if two lists of spans have a byte in common."""
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def _kernels(log: Sequence[Work]) -> list[int]:
    return [n for n, work in enumerate(log) if work.stream == "compute" and work.name != "move"]


def first_wrong(log: Sequence[Work], right: Sequence[Work]) -> tuple[int, Span] | None:
    """The number in ``log`` of the first kernel that reads other bits than in the log ``right``, and which bytes."""
    for n, m in zip(_kernels(log), _kernels(right), strict=True):
        for span, found, expected in zip(log[n].reads, log[n].found, right[m].found, strict=True):
            if found != expected:
                return n, span
    return None


def history(log: Sequence[Work], reader: int, span: Span) -> list[int]:
    """The numbers of what made the bytes that a kernel reads: back over copies, to the kernel that computed them; and
    of what next wrote into the bytes that were copied out."""
    told, at, spans = {reader}, reader, [span]
    while True:
        at = next(n for n in range(at - 1, -1, -1) if overlap(log[n].writes, spans))
        told.add(at)
        if log[at].stream == "compute":
            return sorted(told)
        spans = log[at].reads
        if log[at].stream == "copy-out":
            told.update([n for n in range(at + 1, reader) if overlap(log[n].writes, spans)][:1])
