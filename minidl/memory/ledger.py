"""A manager that only counts: what a step would need, from shapes alone. Places nothing, evicts nothing.

It has the manager's interface, so that the same executor runs a dry step: live bytes and their peak are those of an
unmanaged run, and the largest working set of a single operation is the least that any policy needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minidl.memory import donation
from minidl.memory.guide import Returns
from minidl.memory.storage import IN, RECOMPUTE, Storage
from minidl.memory.switches import ALL_ON
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm, aligned


@dataclass(frozen=True, slots=True)
class Demand:
    """What a step needs (bytes, aligned as in an arena)."""

    unmanaged_peak_bytes: int
    peak_op: str
    largest_op: str
    largest_op_bytes: int


class Ledger:
    """Counts the bytes of a dry step. ``resident_bytes``: what was there before it."""

    def __init__(self, tracker: Tracker, resident_bytes: int = 0) -> None:
        self.tracker = tracker
        self.live_bytes = resident_bytes
        self.peak_bytes = resident_bytes
        self.peak_op = ""
        self.largest_op = ""
        self.largest_op_bytes = 0
        self.written_over: list[Storage] = []
        self.prefetches: tuple[()] = ()
        self.paged_in_bytes = 0
        self.switches = ALL_ON
        self.writing: set[Storage] = set()
        self.protected: set[Storage] = set()
        self.replay: Callable[[Storage], None]

    def demand(self) -> Demand:
        """What was counted so far."""
        return Demand(self.peak_bytes, self.peak_op, self.largest_op, self.largest_op_bytes)

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Everything counts as resident."""

    def before_write(self, targets: Iterable[Storage]) -> None:
        """Nothing is ever dropped here."""

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """No bytes have changed."""

    def place(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage],
              given: int, saved: Sequence[int]) -> tuple[Algorithm, None]:
        """Count the outputs; the algorithm is the one with the least workspace."""
        algorithm = min(signature.algorithms, key=lambda a: a.workspace)
        name = signature.op.name
        taken = donation.free(signature, inputs, given)
        for _, position in taken:
            base = inputs[position].base
            if base.memory is self:
                self.live_bytes -= aligned(base.nbytes)
                base.status = RECOMPUTE
        for output in outputs:
            output.status = IN
            self.live_bytes += aligned(output.nbytes)
        workspace = aligned(algorithm.workspace) if algorithm.workspace else 0
        if self.live_bytes + workspace > self.peak_bytes:
            self.peak_bytes = self.live_bytes + workspace
            self.peak_op = name
        need = working_set(signature, inputs, outputs) + workspace
        if need > self.largest_op_bytes:
            self.largest_op, self.largest_op_bytes = name, need
        return algorithm, None

    def place_leaf(self, storage: Storage) -> None:
        """Count a leaf."""
        storage.status = IN
        self.live_bytes += aligned(storage.nbytes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def prefetch(self) -> None:
        """Nothing is ever away."""

    def act(self, actions: Any, operands: Iterable[Storage]) -> None:
        """No plan is followed."""

    def returns(self) -> Returns:
        """Nothing is ever away."""
        return Returns()

    def replayed(self, target: Storage, durations: Sequence[float]) -> None:
        """Nothing is ever dropped here."""

    def launched(self) -> None:
        """There are no blocks to take from inputs."""

    def free_workspace(self, block: Any, nbytes: int) -> None:
        """There is none."""

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Bytes that nobody can ask for any more."""
        if storage.status is IN:
            storage.status = RECOMPUTE
            self.live_bytes -= aligned(storage.nbytes)
            self.tracker.freed(storage)

    def regenerated(self, storage: Storage) -> None:
        """Nothing is ever dropped here."""

    def drop_again(self, storages: Iterable[Storage]) -> None:
        """Nothing is ever dropped here."""

    def end_iteration(self, *, failed: bool = False) -> None:
        """Nothing to cut: a dry step is one iteration."""

    def check(self) -> None:
        """Raises AssertionError if more was freed than allocated."""
        assert self.live_bytes >= 0, f"live bytes {self.live_bytes}"


def working_set(signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> int:
    """Aligned bytes that must be on the device at once: distinct inputs and outputs, less what can be written over.

    An input may always be written over, if need be after it was copied to the host.
    """
    total = sum(aligned(base.nbytes) for base in {s.base for s in inputs}) + sum(aligned(o.nbytes) for o in outputs)
    used_outputs: set[int] = set()
    used_inputs: set[int] = set()
    for output, position in donation.candidates(signature, inputs):
        if output not in used_outputs and position not in used_inputs:
            used_outputs.add(output)
            used_inputs.add(position)
            total -= aligned(outputs[output].nbytes)
    return total
