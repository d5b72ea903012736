"""Memory that only counts: the bytes that a step needs, from shapes alone. Places nothing, evicts nothing.

It takes the manager's place in a dry run. Live bytes and their peak are those of an unmanaged run; the largest working
set of one operation is the smallest budget that any policy can run in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from minidl.memory.hooks import Attached
from minidl.memory.runner import free_donations, may_donate
from minidl.memory.storage import IN, RECOMPUTE, Storage
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm, aligned, block_bytes
from minidl.op import Attrs, Signature


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that a step needs (bytes, aligned as in an arena).

    reads_values: it read a value before its last call. If it branches on that, these are the bytes of one path.
    calls, ops: number of calls that were counted, and the names of their operations.
    """

    unmanaged_peak_bytes: int
    peak_op: str
    largest_op: str
    largest_op_bytes: int
    reads_values: bool = False
    calls: int = 0
    ops: frozenset[str] = frozenset()


class Ledger:
    """Counts the bytes of a dry step. Memory, keeper and runner in one. ``resident_bytes``: those there before it."""

    update_bytes = 0  # an update takes its parameters one by one: that is the least it needs

    def __init__(self, tracker: Tracker, resident_bytes: int = 0) -> None:
        self.tracker = tracker
        self.state = Attached()
        self.live_bytes = resident_bytes
        self.peak_bytes = resident_bytes
        self.peak_op = ""
        self.largest_op = ""
        self.largest_op_bytes = 0
        self.calls = 0
        self.ops: set[str] = set()

    @property
    def keeper(self) -> Ledger:
        """Itself, as no field: an object that held itself would never be freed."""
        return self

    runner = keeper

    def demand(self, *, reads_values: bool = False) -> Demand:
        """The demand counted so far."""
        return Demand(self.peak_bytes, self.peak_op, self.largest_op, self.largest_op_bytes, reads_values,
                      self.calls, frozenset(self.ops))

    def stand_in(self, storage: Storage) -> Storage:
        """A leaf in the place of a resident gradient. A dry step may release it, as if it had no other handle."""
        self.live_bytes -= block_bytes(storage.base.nbytes)
        leaf = Storage(storage.meta, self, storage.base.tensor_id)
        self.place_leaf(leaf)
        return leaf

    def run(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
            donated: int, saved: Sequence[int], timed: Callable[[float], None]) -> Algorithm:
        """Count the outputs; the algorithm is the one with the least workspace. Nothing is launched."""
        algorithm = min(signature.algorithms, key=lambda a: a.workspace)
        name = signature.op.name
        self.calls += 1
        self.ops.add(name)
        for _, position in free_donations(signature, inputs, donated):
            base = inputs[position].base
            if base.keeper is self:
                self.live_bytes -= block_bytes(base.nbytes)
                base.status = RECOMPUTE
        for output in outputs:
            output.status = IN
            self.live_bytes += block_bytes(output.nbytes)
        workspace = aligned(algorithm.workspace) if algorithm.workspace else 0
        if self.live_bytes + workspace > self.peak_bytes:
            self.peak_bytes = self.live_bytes + workspace
            self.peak_op = name
        need = working_set(signature, inputs, outputs) + workspace
        if need > self.largest_op_bytes:
            self.largest_op, self.largest_op_bytes = name, need
        return algorithm

    def place_leaf(self, storage: Storage) -> None:
        """Count a leaf."""
        storage.status = IN
        self.live_bytes += block_bytes(storage.nbytes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Count bytes that have no use any more."""
        if storage.status is IN:
            storage.status = RECOMPUTE
            self.live_bytes -= block_bytes(storage.nbytes)
            self.tracker.freed(storage)

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Everything counts as resident."""

    def before_write(self, targets: Iterable[Storage]) -> None:
        """Nothing to prepare: no tensor is dropped here."""

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """No copy is stale: there are none."""

    def call_off(self, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> None:
        """Nothing was prepared."""

    def replay(self, target: Storage) -> None:
        """Nothing to replay: no tensor is dropped here."""

    def goes_on(self) -> bool:
        """A dry step is one iteration, however many updates it has."""
        return True

    def end_iteration(self, *, failed: bool = False) -> None:
        """Nothing to cut: a dry step is one iteration."""

    def check(self) -> None:
        """Raises AssertionError if more was freed than allocated."""
        assert self.live_bytes >= 0, f"live bytes {self.live_bytes}"


def working_set(signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> int:
    """Aligned bytes that must be on the device at once: distinct inputs and outputs, less the outputs that can take the
    bytes of an input. An input can always donate, if need be after it was copied to the host."""
    total = sum(block_bytes(storage.nbytes) for storage in (*{s.base for s in inputs}, *outputs))
    used_outputs: set[int] = set()
    used_inputs: set[int] = set()
    for output, position in may_donate(signature, inputs):
        if output not in used_outputs and position not in used_inputs:
            used_outputs.add(output)
            used_inputs.add(position)
            total -= block_bytes(outputs[output].nbytes)
    return total
