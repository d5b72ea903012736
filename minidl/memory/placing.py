"""Placing a call's outputs: in bytes that an input gives up, in a free block, or in what can be made free.

An input gives up its bytes when its last use was given away; when memory is short, also if it can be made again or is
about to be dropped; and if nothing else helps, after a copy of it was made on the host. So an operation whose aligned
working set fits the budget always runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.device import Device
from minidl.errors import OutOfMemory
from minidl.memory import donation
from minidl.memory.arena import Block
from minidl.memory.guide import NOWHERE
from minidl.memory.space import Space
from minidl.memory.storage import IN, OUT, RECOMPUTE, Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm, aligned
from minidl.placements.placement import Placement
from minidl.plan.plan import Action
from minidl.plan.policy import Policy


class Placer(Space):
    """Gives every output a block, and every call the workspace that is left over."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None) -> None:
        super().__init__(device, policy, tracker, budget_bytes, host_bytes, switches, placement)
        self.coupled = not switches.decoupled_swap
        self._overlapped = (0, 0)  # positions of the copies that the last call overlapped, out and in
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
        Raises OutOfMemory, or what a copy raises, with every output unplaced again.
        """
        self.thread = get_ident()
        if self.orphans:
            self.bury()
        if self.coupled:
            self._wait_for_copies()
        self.busy = True
        if given and signature.donates:
            for target, position in donation.free(signature, inputs, given):
                self._take_over(outputs[target], inputs[position].base)
        high, offsets = signature.op.long_lived, NOWHERE if self.guide is None else self.guide.offsets
        try:
            for output in outputs:
                if output.block is None:
                    # Where it fits is the whole answer if there is room, and no plan that says where.
                    block = None if offsets else self.arena.allocate(output.nbytes, output.me, high=high)
                    if block is None:
                        address = offsets.get((output.tensor_id, output.residency))
                        block = self._place(signature, inputs, outputs, output, saved, address, high or bool(offsets))
                    self.device.wait_marks(COMPUTE, block.marks)
                    output.block = block
                    output.residency += 1
                    output.status = IN  # fresh: RECOMPUTE -> IN is its first edge
                    self.residents[output.me] = None
            algorithm, workspace = signature.algorithms[0], None
            if algorithm.workspace:
                algorithm, workspace = self._workspace(signature, inputs, outputs)
        except BaseException:
            self.launched()
            self.busy = False
            for output in outputs:
                if output.block is not None:
                    self.deallocate(output)
            raise
        self.busy = workspace is not None  # until it is given back nothing may be freed: it could unite with it
        return algorithm, workspace

    def _wait_for_copies(self) -> None:
        """Without decoupled swapping: what was being copied while the last call ran must have ended before this one."""
        device, (out, back_in) = self.device, self._overlapped
        device.wait(COMPUTE, COPY_OUT, out)
        device.wait(COMPUTE, COPY_IN, back_in)
        self._overlapped = device.positions[COPY_OUT], device.positions[COPY_IN]

    def _place(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage], output: Storage,
               saved: Sequence[int], address: int | None, high: bool) -> Block:
        """A block for one output: where the plan wants it, or where it fits, or what can be made free.

        high: at the persistent end, which a plan with addresses keeps for what has none.
        """
        if address is not None:
            block = (self._claim(output, address)
                     or self._write_over(signature, inputs, outputs, output, saved, address=address))
            if block is not None:
                return block
        block = self.arena.allocate(output.nbytes, output.me, high=high)
        if block is None and self.leaving:
            block = self._gather(output.nbytes, output.me, high=high)
        return block or self._allocate_short(signature, inputs, outputs, output, saved)

    def launched(self) -> None:
        """The call has been given to the device: the inputs that it writes over have lost their bytes."""
        for storage in self.written_over:
            storage.block = None
        self.written_over.clear()

    def _workspace(self, signature: Any, inputs: Sequence[Storage],
                   outputs: Sequence[Storage]) -> tuple[Algorithm, Block | None]:
        """The fastest algorithm whose workspace is free, with the block that lends it; only the least workspace is
        worth an eviction."""
        arena = self.arena
        if self.leaving:
            self._reclaim_landed()
        for position, algorithm in enumerate(signature.algorithms):
            if not algorithm.workspace:
                return algorithm, None
            block = arena.lend(algorithm.workspace)
            if block is None and position + 1 < len(signature.algorithms) and not (
                    self.guide is not None and self.guide.offsets):
                gain_seconds = signature.algorithms[position + 1].seconds - algorithm.seconds
                if self._slide_for(algorithm.workspace, gain_seconds):
                    block = arena.lend(algorithm.workspace)
            if block is not None:
                self.device.wait_marks(COMPUTE, block.marks)
                return algorithm, block
        algorithm = min(signature.algorithms, key=lambda a: a.workspace)
        self._make_room(algorithm.workspace, _with_bytes(inputs, outputs), signature.op.name)
        block = arena.lend(algorithm.workspace)
        assert block is not None
        self.device.wait_marks(COMPUTE, block.marks)
        return algorithm, block

    def free_workspace(self, block: Block, nbytes: int) -> None:
        """The call has been launched; whoever uses these bytes next is after it on the stream."""
        self.allocator.take_back(block, nbytes)
        self.busy = False

    def _take_over(self, output: Storage, base: Storage) -> None:
        block = base.block
        assert block is not None
        output.block = block
        output.residency += 1
        block.owner = output.me
        self.written_over.append(base)
        self.tracker.donated(output.tensor_id, base.tensor_id)
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
        if self.arena.free_bytes < aligned(output.nbytes):
            block = self._write_over(signature, inputs, outputs, output, saved)
            if block is not None:
                return block
        pinned = _with_bytes(inputs, outputs)
        try:
            return self._allocate(output.nbytes, output.me, pinned, signature.op.name,
                                  high=signature.op.long_lived)
        except OutOfMemory:
            for _, base in self._candidates(signature, inputs, outputs, output):
                if self._back_up(base):
                    return self._donate(output, base)
            raise

    def _candidates(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage],
                    output: Storage) -> list[tuple[int, Storage]]:
        """The inputs, with their positions, that an output might be written over if they could be made again."""
        if not self.policy.moves_tensors:
            return []
        index = outputs.index(output)
        return [(p, inputs[p].base) for o, p in donation.candidates(signature, inputs)
                if o == index and inputs[p].base.status is IN]

    def _write_over(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage], output: Storage,
                    saved: Sequence[int], *, address: int | None = None) -> Block | None:
        """The block of an input (at this address, if one is given) that can be made again or is about to leave."""
        planned = self.guide.upcoming() if self.guide is not None else {}
        for position, base in self._candidates(signature, inputs, outputs, output):
            assert base.block is not None
            if address is not None and base.block.offset != address:
                continue
            unsaved = position not in saved and not base.saved
            leaves = planned.get(base.tensor_id) is Action.DROP  # right after this call
            if base.host is not None or ((unsaved or leaves) and self._lineage(base) is not None):
                return self._donate(output, base)
        return None

    def _donate(self, output: Storage, base: Storage) -> Block:
        if base.host is not None:  # a copy that is still under way reads what the call is about to write over
            self.device.wait(COMPUTE, COPY_OUT, base.copied_out)
        base.refs += 1  # the handles that remain will ask for it again: it is not free, only written over
        self._take_over(output, base)
        base.refs -= 1
        assert output.block is not None
        return output.block

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free a storage's bytes."""
        raise NotImplementedError

    def bury(self) -> None:
        """Free what was left while the arena was at work."""
        raise NotImplementedError


def _with_bytes(inputs: Sequence[Storage], outputs: Sequence[Storage]) -> set[Storage]:
    """The operands that have bytes of their own: an input that is written over still names its block, which counts as
    the output's."""
    return {storage.base for storage in (*inputs, *outputs) if storage.base.status is IN}
