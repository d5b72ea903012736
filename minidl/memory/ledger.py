"""The memory of a dry run: it counts the bytes that a step needs, from shapes alone. Places nothing, evicts nothing.

``Ledger`` takes the place of ``Manager``. The bytes that it counts are those of a run without any eviction; the largest
working set of one operation is the smallest budget that any policy can run in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minidl.memory.hooks import Attached
from minidl.memory.runner import free_donations, may_donate
from minidl.memory.storage import IN, RECOMPUTE, Storage
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm, aligned, block_bytes
from minidl.op import Attrs, Signature


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that a step needs, in bytes, each tensor rounded up as in an arena.

    unmanaged_peak_bytes  the peak if nothing ever leaves the device; the call of ``peak_op`` reaches it.
    largest_op_bytes      the working set of the largest operation, ``largest_op``: the smallest possible budget.
    reads_values          the step read a tensor's value before its last call. If it branches on that value, these are
                          the bytes of one branch.
    calls, ops            the number of calls of one step, views left out, and the names of their operations."""

    unmanaged_peak_bytes: int
    peak_op: str
    largest_op: str
    largest_op_bytes: int
    reads_values: bool = False
    calls: int = 0
    ops: frozenset[str] = frozenset()


class Ledger:
    """Counts the bytes of a dry run of a step. It has the methods of the executor's memory, call runner and keeper.

    resident_bytes: bytes of the tensors that are on the device before the step.
    """

    update_bytes = 0  # an optimizer's update takes its parameters one by one: that needs the fewest bytes

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
        """The ledger itself: in a dry run it is the object that is told when a storage's bytes are no longer needed."""
        return self  # a property, as an object that held itself in a field would be a cycle

    runner = keeper

    def demand(self, *, reads_values: bool = False) -> Demand:
        """The bytes counted so far. reads_values: see ``Demand``."""
        return Demand(self.peak_bytes, self.peak_op, self.largest_op, self.largest_op_bytes, reads_values,
                      self.calls, frozenset(self.ops))

    def stand_in(self, storage: Storage) -> Storage:
        """Return a leaf that stands for a real gradient in the dry run, so that the step can free it in the count."""
        self.live_bytes -= block_bytes(storage.base.nbytes)
        leaf = Storage(storage.meta, self, storage.base.tensor_id)
        self.place_leaf(leaf)
        return leaf

    def run(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
            donated: int, saved: Sequence[int], timed: Callable[[float], None]) -> Algorithm:
        """Count a call's outputs and its least workspace; return the algorithm with that workspace. Launches nothing.
        donated: bit i is set if input i is used for the last time. ``saved`` and ``timed`` are ignored."""
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
        """Count the bytes of a new leaf."""
        storage.status = IN
        self.live_bytes += block_bytes(storage.nbytes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Count a storage's bytes as free, unless they are already; record_gone makes no difference here."""
        if storage.status is IN:
            storage.status = RECOMPUTE
            self.live_bytes -= block_bytes(storage.nbytes)
            self.tracker.freed(storage)

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Does nothing: in a dry run every tensor counts as resident."""

    def before_write(self, targets: Sequence[Storage], inputs: Sequence[Storage]) -> None:
        """Does nothing: no tensor is dropped in a dry run, so none has to be recomputed before the write."""

    def after_write(self, targets: Sequence[Storage], number: int) -> None:
        """Does nothing: a dry run has no host copies that the write could make stale."""

    def call_off(self, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> None:
        """Does nothing: ``before_write`` prepared nothing that the end of the call could undo."""

    def replay(self, target: Storage) -> None:
        """Does nothing: no tensor is dropped in a dry run."""

    def keep_on_host(self, nbytes: int) -> Callable[[], None]:
        """Count nothing: these bytes never come to the device."""
        return lambda: None

    def goes_on(self) -> bool:
        """True: a dry run is one iteration, however many optimizer steps it has."""
        return True

    def end_iteration(self, *, failed: bool = False) -> None:
        """Does nothing: a dry run is one iteration, so no lineage has to be cut."""

    def check(self) -> None:
        """Raises AssertionError if more bytes were freed than allocated."""
        assert self.live_bytes >= 0, f"live bytes {self.live_bytes}"


def working_set(signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> int:
    """The aligned bytes of a call's distinct inputs and of its outputs, except outputs that can take an input's bytes.
    An input that the program still needs can donate its bytes too, after it was copied to the host."""
    total = sum(block_bytes(storage.nbytes) for storage in (*{s.base for s in inputs}, *outputs))
    used_outputs: set[int] = set()
    used_inputs: set[int] = set()
    for output, position in may_donate(signature, inputs):
        if output not in used_outputs and position not in used_inputs:
            used_outputs.add(output)
            used_inputs.add(position)
            total -= block_bytes(outputs[output].nbytes)
    return total
