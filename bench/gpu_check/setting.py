"""The arguments of every part of the GPU check: a device by name, sizes, a time limit, and a place for results.

A part is a function of a ``Setting`` and a ``Record``. It opens devices and runtimes through the setting alone, so that
a test can run it on the CPU, on a simulator or on a vendor without a GPU, at sizes of its own. Knows no part.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from traceback import format_exception
from typing import Any

from bench.gpu_check.poison import poison_outputs
from minidl import Runtime
from minidl import device as devices
from minidl.device import Device
from minidl.memory.ledger import Demand
from minidl.outside.units import UNLIMITED

PRECISIONS = ("tf32", "bf16")
RESERVE_BYTES = 256 * 2**20  # beside what a step needs: the device's own, and room for rounding up

Program = Callable[[Runtime], Callable[[], Any]]  # makes a model in the current runtime and returns its step


@dataclass(frozen=True)
class Training:
    """A network at a batch; ``side``: pixels of its images, ``length``: tokens of its sequences, if not its own."""

    model: str
    batch: int
    side: int | None = None
    length: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)  # of ``models.create``

    @property
    def name(self) -> str:
        """The network and the batch as text, for example ``resnet50 at 128``."""
        return f"{self.model} at {self.batch}"


@dataclass(frozen=True)
class Stack:
    """Transformer layers of a width, with so many heads, on sequences of a length."""

    layers: int
    width: int
    heads: int
    sequences: int
    length: int


@dataclass(frozen=True)
class Sizes:
    """The sizes of the check; a field has the name of the part that reads it.

    ops_every        every n-th case of the table runs; ops_block: elements of a kernel's block, at whose edges the
                     sizes of cases lie; dtypes: of the cases
    mirrored         networks whose gradients are compared with PyTorch's
    convolutions     networks whose convolutions' plans are timed
    link_bytes       of a copy; calls: in a row for one host time, fewer than the driver's queue holds, because a full
                     queue makes the host wait
    host             networks whose operations' host time is taken; the first also shows the vendor's calls
    speed            networks that run in turns with PyTorch's, for ``rounds`` rounds of ``steps`` steps
    managed          networks that run in ``managed_bytes``; plans: how many ``auto`` tries
    identity         networks that run under every policy, in shares of what they need
    large            images and their side, of 64 channels: more than 2^31 elements
    maps             feature maps on which bytes a second are measured
    stack            the training in PyTorch that ``minidl.torch`` manages
    """

    ops_block: int
    ops_every: int
    mirrored: tuple[Training, ...]
    convolutions: tuple[Training, ...]
    link_bytes: int
    calls: int
    host: tuple[Training, ...]
    speed: tuple[Training, ...]
    rounds: int
    steps: int
    managed: tuple[Training, ...]
    managed_bytes: int
    host_bytes: int
    plans: int
    identity: tuple[Training, ...]
    large: tuple[int, int] = (2688, 112)
    maps: tuple[int, int, int, int] = (256, 64, 56, 56)
    stack: Stack = Stack(16, 1024, 16, 8, 1024)
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    precisions: tuple[str, ...] = PRECISIONS


class Record:
    """The findings of a part, written to their file whenever one is added, so that a crash loses nothing.

    ``before``: the record of an earlier call, as data. Its findings are known, except for failures. A record that ended
    with a dead device keeps its failures, and ``resume`` is the place that it noted.
    """

    def __init__(self, path: Path | None = None, tell: Callable[[str], None] = print,
                 before: Mapping[str, Any] | None = None) -> None:
        before = before or {}
        self.resume: dict[str, Any] = dict(before.get("resume", {}))
        self.dead: dict[str, Any] | None = None
        failed = tuple(before.get("failures", ()))
        self.found: dict[str, Any] = {key: value for key, value in before.get("found", {}).items()
                                      if self.resume or not any(words.startswith(key) for words in failed)}
        self._known = set(self.found)
        self.failures: list[str] = list(failed) if self.resume else []
        self.unfinished: list[str] = []
        self._path = path
        self.tell = tell

    def known(self, key: str) -> bool:
        """True if an earlier call has found this, so that it need not be found again."""
        return key in self._known

    def put(self, key: str, value: Any, line: str | None = None) -> None:
        """Add a finding, and print it; or print ``line`` instead, if it is given."""
        self.found[key] = value
        self.tell(line if line is not None else f"{key}: {value}")
        self._write()

    def fail(self, words: str) -> None:
        """Add a failure: a sentence about a result that is wrong."""
        self.failures.append(words)
        self.tell(f"FAILED {words}")
        self._write()

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Return a context for one of several steps of a part: an exception becomes a failure, and the part continues.

        Exceptions after the device has died are not recorded.
        """
        try:
            yield
        except Exception as error:
            if self.dead is None:
                self.fail(f"{name}: {type(error).__name__}: {error}\n" + "".join(format_exception(error)))

    def die(self, place: Mapping[str, Any]) -> None:
        """Record that the device no longer answers, and the place from which a new process goes on."""
        self.dead = dict(place)
        self._write()

    def leave_out(self, words: str) -> None:
        """Record that something was not done, and why."""
        self.unfinished.append(words)
        self.tell(f"left out: {words}")
        self._write()

    def as_data(self) -> dict[str, Any]:
        """Return the whole record as it is written to its file."""
        data: dict[str, Any] = {"found": self.found, "failures": self.failures, "left out": self.unfinished}
        return data if self.dead is None else {**data, "resume": self.dead}

    def _write(self) -> None:
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self.as_data(), indent=1, default=str) + "\n", encoding="utf-8")
            new.replace(self._path)


def open_by_name(name: str, precision: str) -> Device:
    """Open the device of this name."""
    return devices.create(name, precision=precision)


@dataclass(frozen=True)
class Setting:
    """The arguments of a part: the device and the sizes. results: of the earlier parts; ends: when the part must end.
    """

    device: str
    sizes: Sizes
    folder: Path
    results: Mapping[str, Any] = field(default_factory=dict)
    ends: float = float("inf")
    opened: Callable[[str, str], Device] = open_by_name

    @property
    def compiles(self) -> bool:
        """Return True if kernels are compiled; a vendor that stands in for a GPU compiles none."""
        return self.opened is open_by_name

    def seconds_left(self) -> float:
        """Return the seconds until the part must end; negative after that."""
        return self.ends - perf_counter()

    def in_time(self, record: Record, name: str) -> bool:
        """Return True if there is time left for a measurement; if not, record that it was left out."""
        if self.seconds_left() < 0:
            record.leave_out(f"{name}: the time is up")
            return False
        return True

    @contextmanager
    def open(self, precision: str = "tf32") -> Iterator[Device]:
        """Return a context with the open device. It is closed at the end: a runtime on a GPU may take all memory."""
        device = self.opened(self.device, precision)
        try:
            yield device
        finally:
            close = getattr(device, "close", None)
            if close is not None:
                close()

    @contextmanager
    def runtime(self, *, precision: str = "tf32", poisoned: bool = False, **options: Any) -> Iterator[Runtime]:
        """Return a context with a runtime on a device of its own, unmanaged unless ``options`` say otherwise.

        poisoned: every launch finds NaN in the memory that it is to write.
        """
        with self.open(precision) as device:
            if poisoned:
                poison_outputs(device)
            with runtime_on(device, precision, **options) as runtime:
                yield runtime

    def demand(self, program: Program, *, precision: str = "tf32") -> Demand:
        """Return the bytes that a step of the program needs, found by a dry run."""
        with (self.open(precision) as device,
              runtime_on(device.dry_twin(), precision, memory_budget=UNLIMITED) as twin):
            return twin.dry_run(program(twin))

    def bytes_for(self, program: Program, *, precision: str = "tf32") -> int:
        """Return a budget in bytes that is enough for an unmanaged step of the program."""
        return int(1.05 * self.demand(program, precision=precision).unmanaged_peak_bytes) + RESERVE_BYTES


@contextmanager
def runtime_on(device: Device, precision: str, **options: Any) -> Iterator[Runtime]:
    """Return a context with a runtime on an open device, unmanaged unless ``options`` say otherwise."""
    unmanaged: dict[str, Any] = {"policy": "none", "host_memory": 0}
    with Runtime(device, precision=precision, **unmanaged | options) as runtime:
        yield runtime


def kept_bytes(device: Device) -> int:
    """Return how many bytes of a budget a device keeps for itself."""
    return UNLIMITED - device.usable_bytes(UNLIMITED)
