"""Placing a call's outputs: in bytes that an input gives up, in a free block, or in what can be made free.

An input gives up its bytes when its last use was given away; when memory is short, also if it can be made again or is
about to be dropped; and if nothing else helps, after a copy of it was made on the host. So an operation whose aligned
working set fits the budget always runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

from minidl.device.clock import COMPUTE
from minidl.device.device import Device
from minidl.errors import OutOfMemory
from minidl.memory import donation
from minidl.memory.arena import Block
from minidl.memory.guide import Guide
from minidl.memory.plan import Action, Policy
from minidl.memory.space import Space
from minidl.memory.storage import IN, OUT, RECOMPUTE, Storage
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm, aligned


class Placer(Space):
    """Gives every output a block, and every call the workspace that is left over."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int) -> None:
        super().__init__(device, policy, tracker, budget_bytes, host_bytes)
        self.guide: Guide | None = None  # set where the policy plans
        self.written_over: list[Storage] = []  # inputs whose block is an output's now; they name it until the launch

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf uninitialised bytes. Raises OutOfMemory."""
        self.thread = get_ident()
        self.bury()
        self.busy = True
        try:
            storage.block = self._allocate(storage.nbytes, storage.me, set(), "allocate", high=storage.persistent)
        finally:
            self.busy = False
        self.device.wait_marks(COMPUTE, storage.block.marks)
        storage.status = IN
        self.residents[storage.me] = None

    def place(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage],
              given: int, saved: Sequence[int]) -> tuple[Algorithm, Block | None]:
        """Give every output a block, by donation or allocation, and choose the algorithm by the workspace at hand.

        given: the inputs that are used for the last time (bits); saved: those that this call keeps for its gradient.
        Raises OutOfMemory, with every output unplaced again.
        """
        op = signature.op
        self.thread = get_ident()
        if self.orphans:
            self.bury()
        self.busy = True
        if op.donates:
            pairs = donation.free(signature, inputs, outputs, given)
            for target, position in pairs:
                self._take_over(outputs[target], inputs[position].base)
            if pairs:
                self.tracker.donated(tuple((outputs[o].tensor_id, inputs[p].base.tensor_id) for o, p in pairs))
        try:
            for output in outputs:
                if output.block is None:
                    high = op.long_lived or output.persistent
                    block = self.arena.allocate(output.nbytes, output.me, high=high)
                    if block is None and self.leaving:
                        block = self._gather(output.nbytes, output.me, high=high)
                    if block is None:
                        block = self._allocate_short(signature, inputs, outputs, output, saved)
                    self.device.wait_marks(COMPUTE, block.marks)
                    output.block = block
                    output.status = IN  # fresh: RECOMPUTE -> IN is its first edge
                    self.residents[output.me] = None
            return self._workspace(signature, inputs, outputs)
        except OutOfMemory:
            self.launched()
            self.busy = False
            for output in outputs:
                if output.block is not None:
                    self.deallocate(output)
            raise
        finally:
            self.busy = False

    def launched(self) -> None:
        """The call has been given to the device: the inputs that it writes over have lost their bytes."""
        for storage in self.written_over:
            storage.block = None
        self.written_over.clear()

    def _workspace(self, signature: Any, inputs: Sequence[Storage],
                   outputs: Sequence[Storage]) -> tuple[Algorithm, Block | None]:
        """The fastest algorithm whose workspace is free; only the least workspace is worth an eviction."""
        arena = self.arena
        for position, algorithm in enumerate(signature.algorithms):
            if not algorithm.workspace:
                return algorithm, None
            block = arena.allocate(algorithm.workspace, self)
            if block is None and position + 1 < len(signature.algorithms):
                gain_seconds = signature.algorithms[position + 1].seconds - algorithm.seconds
                if self._slide_for(algorithm.workspace, gain_seconds):
                    block = arena.allocate(algorithm.workspace, self)
            if block is not None:
                self.device.wait_marks(COMPUTE, block.marks)
                return algorithm, block
        algorithm = min(signature.algorithms, key=lambda a: a.workspace)
        pinned = {storage.base for storage in (*inputs, *outputs)}
        block = self._allocate(algorithm.workspace, self, pinned, signature.op.name)
        self.device.wait_marks(COMPUTE, block.marks)
        return algorithm, block

    def free_workspace(self, block: Block) -> None:
        """The call has been launched; whoever uses these bytes next is after it on the stream."""
        self.allocator.free(block)

    def _take_over(self, output: Storage, base: Storage) -> None:
        block = base.block
        assert block is not None
        output.block = block
        block.owner = output.me
        self.written_over.append(base)
        output.status = IN
        self.residents[output.me] = None
        if base.host is not None:
            base.become(OUT)
        else:
            base.become(RECOMPUTE)
            self.residents.pop(base.me, None)
            if base.refs > 1:  # not only the handle that was given away
                self.dropped[base.me] = None

    def _allocate_short(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage],
                        output: Storage, saved: Sequence[int]) -> Block:
        """Memory is short: donate what can be made again, then evict, then back up an input and write over it."""
        index = outputs.index(output)
        planned = self.guide.upcoming() if self.guide is not None else {}
        over = [(p, inputs[p].base) for o, p in donation.candidates(signature, inputs, outputs)
                if o == index and inputs[p].base.status is IN]
        if self.policy.moves_tensors and self.arena.free_bytes < aligned(output.nbytes):
            for position, base in over:
                unsaved = position not in saved and not base.saved
                leaves = planned.get(base.tensor_id) is Action.DROP  # right after this call
                if base.host is not None or ((unsaved or leaves) and self._lineage(base) is not None):
                    return self._donate(output, base)
        pinned = {storage.base for storage in (*inputs, *outputs)}
        try:
            return self._allocate(output.nbytes, output.me, pinned, signature.op.name,
                                  high=signature.op.long_lived or output.persistent)
        except OutOfMemory:
            for _, base in over if self.policy.moves_tensors else ():
                if self._back_up(base):
                    return self._donate(output, base)
            raise

    def _donate(self, output: Storage, base: Storage) -> Block:
        base.refs += 1  # the handles that remain will ask for it again: it is not free, only written over
        self._take_over(output, base)
        base.refs -= 1
        self.tracker.donated(((output.tensor_id, base.tensor_id),))
        assert output.block is not None
        return output.block

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free a storage's bytes."""
        raise NotImplementedError

    def bury(self) -> None:
        """Free what was left while the arena was at work."""
        raise NotImplementedError
