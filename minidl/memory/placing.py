"""Carrying out one call: its outputs are placed, it is launched, its workspace is given back.

An output lies in bytes that an input gives up, in a free block, or in what can be made free. An input gives up its
bytes when its last use was given away; when memory is short, also if it can be made again or is about to be dropped;
and if nothing else helps, after a copy of it was made on the host. So an operation whose aligned working set fits the
budget always runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import get_ident

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.errors import OutOfMemory
from minidl.memory.bytes.block import Block
from minidl.memory.evicting import Evicting
from minidl.memory.freeing import Freeing
from minidl.memory.guided.follower import NOWHERE
from minidl.memory.guided.relocate import clear
from minidl.memory.room import Room
from minidl.memory.state import State, with_bytes
from minidl.memory.storage import IN, OUT, RECOMPUTE, Storage
from minidl.meta import Algorithm
from minidl.op import Attrs, Signature
from minidl.plan.plan import Action


class Placing:
    """Gives every output a block, and every call the workspace that is left over."""

    def __init__(self, state: State, freeing: Freeing, room: Room, evicting: Evicting) -> None:
        self.state = state
        self.freeing = freeing
        self.room = room
        self.evicting = evicting
        self.coupled = not state.switches.decoupled_swap
        self._overlapped = (0, 0)  # positions of the copies that the last call overlapped, out and in
        self._written_over: list[Storage] = []  # inputs whose block is an output's now; they name it until the launch

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf uninitialised bytes. Raises OutOfMemory."""
        state = self.state
        state.thread = get_ident()
        self.freeing.bury()
        with state.at_work:
            storage.block = self.room.allocate(storage.nbytes, storage.me, set(), "allocate", high=storage.persistent)
        state.device.wait_marks(COMPUTE, storage.block.marks)
        storage.status = IN
        state.residents[storage.me] = None
        if state.access_list is not None:
            state.access_list.touch((storage,))

    def carry_out(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
                  given: int, saved: Sequence[int], timed: Callable[[float], None]) -> Algorithm:
        """Place the outputs of a call whose inputs are resident, and launch it; returns the algorithm that runs.

        given: the inputs that are used for the last time (bits). saved: those that this call keeps for its gradient.
        timed: told the seconds that it takes on the device. Raises OutOfMemory, or what a copy raises, with every
        output unplaced again.
        """
        state = self.state
        state.thread = get_ident()
        if state.orphans:
            self.freeing.bury()
        if self.coupled:
            self._wait_for_copies()
        at_work = state.at_work
        at_work.on = True  # kept flat, as this is every operation's path
        try:
            algorithm, workspace = self._place(signature, inputs, outputs, given, saved)
        except BaseException:
            self._launched()
            at_work.on = False
            for output in outputs:
                if output.block is not None:
                    self.freeing.deallocate(output)
            raise
        at_work.on = workspace is not None  # until it is given back nothing may be freed: it could unite with it
        try:
            state.device.launch(signature.op.name, algorithm, outputs, inputs, attrs,
                                workspace.offset if workspace else 0, timed)
        finally:
            if workspace is not None:  # whoever uses these bytes next is after it on the stream
                state.allocator.take_back(workspace, algorithm.workspace)
                at_work.on = False
            if self._written_over:
                self._launched()
        if state.access_list is not None:
            state.access_list.touch((*inputs, *outputs))
        return algorithm

    def _place(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
               given: int, saved: Sequence[int]) -> tuple[Algorithm, Block | None]:
        """A block for each output, the algorithm that the free memory allows, and its workspace."""
        state = self.state
        if given and signature.donates:
            for target, position in given_away(signature, inputs, given):
                base = inputs[position].base
                if not (state.impure and self.freeing.starts_a_replay(base)):
                    self._take_over(outputs[target], base)
        high, offsets = signature.op.long_lived, NOWHERE if state.guide is None else state.guide.offsets
        for output in outputs:
            if output.block is None:
                # Where it fits is the whole answer if there is room, and no plan that says where.
                block = None if offsets else state.arena.allocate(output.nbytes, output.me, high=high)
                if block is None:
                    address = offsets.get((output.tensor_id, output.residency))
                    block = self._find(signature, inputs, outputs, output, saved, address, high or bool(offsets))
                state.device.wait_marks(COMPUTE, block.marks)
                if output.block is None:  # it was not written over an input
                    output.block = block
                    output.residency += 1
                    output.status = IN  # fresh: RECOMPUTE -> IN is its first edge
                    state.residents[output.me] = None
        algorithm = signature.algorithms[0]
        return self._workspace(signature, inputs, outputs) if algorithm.workspace else (algorithm, None)

    def _wait_for_copies(self) -> None:
        """Without decoupled swapping: what was being copied while the last call ran must have ended before this one."""
        device, (out, back_in) = self.state.device, self._overlapped
        device.wait(COMPUTE, COPY_OUT, out)
        device.wait(COMPUTE, COPY_IN, back_in)
        self._overlapped = device.positions[COPY_OUT], device.positions[COPY_IN]

    def _find(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage], output: Storage,
              saved: Sequence[int], address: int | None, high: bool) -> Block:
        """A block for one output: where the plan wants it, or where it fits, or what can be made free.

        high: at the persistent end, which a plan with addresses keeps for what has none.
        """
        if address is not None:
            block = (self.room.claim(output, address)
                     or self._write_over(signature, inputs, outputs, output, saved, address=address)
                     or clear(self.state, output, address, [base.block for base in self._written_over if base.block]))
            if block is not None:
                return block
        block = self.state.arena.allocate(output.nbytes, output.me, high=high)
        if block is None and self.state.leaving:
            block = self.room.gather(output.nbytes, output.me, high=high)
        return block or self._find_short(signature, inputs, outputs, output, saved)

    def _find_short(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                    output: Storage, saved: Sequence[int]) -> Block:
        """Memory is short: donate what can be made again, then evict, then back up an input and write over it."""
        if self.state.arena.free_bytes < self.state.arena.rounded(output.nbytes):
            block = self._write_over(signature, inputs, outputs, output, saved)
            if block is not None:
                return block
        while True:
            try:
                return self.room.allocate(output.nbytes, output.me, with_bytes(*inputs, *outputs), signature.op.name,
                                          high=signature.op.long_lived)
            except OutOfMemory as error:
                for _, base in self._candidates(signature, inputs, outputs, output):
                    if self.evicting.back_up(base):
                        return self._donate(output, base)
                if not self._make_way(signature, inputs, outputs, output):
                    # What else might be written over has no room on the host.
                    stuck = any(self._candidates(signature, inputs, outputs, each) for each in outputs)
                    raise self.room.with_full_host(error) if stuck else error from None

    def _make_way(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                  output: Storage) -> bool:
        """Write an earlier output of the call, which has a block of its own, over an input instead; False if none may
        be: all that is left is what this output needs."""
        taken = {base.block for base in self._written_over}
        for earlier in outputs[:outputs.index(output)]:
            if earlier.block in taken:
                continue
            for _, base in self._candidates(signature, inputs, outputs, earlier):
                if self.evicting.back_up(base) or self.evicting.lineage_of(base) is not None:
                    self.state.allocator.leave_device(earlier)
                    earlier.residency -= 1  # it is still the same one
                    self._donate(earlier, base)
                    return True
        return False

    def _workspace(self, signature: Signature, inputs: Sequence[Storage],
                   outputs: Sequence[Storage]) -> tuple[Algorithm, Block | None]:
        """The fastest algorithm whose workspace is free, with the block that lends it; only the least workspace is
        worth an eviction."""
        state = self.state
        arena = state.arena
        if state.leaving:
            self.room.reclaim_landed()
        named = state.guide.algorithm(signature) if state.guide is not None else None
        names = [algorithm.name for algorithm in signature.algorithms] if named is not None else []
        first = names.index(named) if named in names else 0
        for position, algorithm in enumerate(signature.algorithms[first:], first):
            if not algorithm.workspace:
                return algorithm, None
            block = arena.lend(algorithm.workspace)
            if block is None and position + 1 < len(signature.algorithms) and not (
                    state.guide is not None and state.guide.offsets):
                gain_seconds = signature.algorithms[position + 1].seconds - algorithm.seconds
                if self.room.slide_for(algorithm.workspace, gain_seconds):
                    block = arena.lend(algorithm.workspace)
            if block is not None:
                state.device.wait_marks(COMPUTE, block.marks)
                return algorithm, block
        algorithm = min(signature.algorithms, key=lambda a: a.workspace)
        self.room.make(algorithm.workspace, with_bytes(*inputs, *outputs), signature.op.name)
        block = arena.lend(algorithm.workspace)
        assert block is not None
        state.device.wait_marks(COMPUTE, block.marks)
        return algorithm, block

    # Writing over inputs -------------------------------------------------------------------------------------
    def _take_over(self, output: Storage, base: Storage) -> None:
        """Give an output the block of an input, which loses its bytes when the call is launched."""
        state, block = self.state, base.block
        assert block is not None
        output.block = block
        output.residency += 1
        block.owner = output.me
        self._written_over.append(base)
        state.tracker.donated(output.tensor_id, base.tensor_id)
        output.status = IN
        state.residents[output.me] = None
        if base.host is not None:  # a copy that is still under way reads what the call is about to write over
            state.device.wait(COMPUTE, COPY_OUT, base.copied_out)
            base.become(OUT)
        else:
            base.become(RECOMPUTE)
            state.residents.pop(base.me, None)
            if base.refs > 1:  # not only the handle that was given away
                state.dropped[base.me] = None

    def _launched(self) -> None:
        """The call has been given to the device: the inputs that it writes over have lost their bytes."""
        for storage in self._written_over:
            storage.block = None
        self._written_over.clear()

    def _candidates(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                    output: Storage) -> list[tuple[int, Storage]]:
        """The inputs, with their positions, that an output might be written over if they could be made again."""
        if not self.state.policy.moves_tensors:
            return []
        index = outputs.index(output)
        return [(p, inputs[p].base) for o, p in may_be_written_over(signature, inputs)
                if o == index and inputs[p].base.status is IN]

    def _write_over(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage], output: Storage,
                    saved: Sequence[int], *, address: int | None = None) -> Block | None:
        """The block of an input (at this address, if one is given) that can be made again or is about to leave."""
        guide = self.state.guide
        planned = guide.upcoming() if guide is not None else {}
        for position, base in self._candidates(signature, inputs, outputs, output):
            assert base.block is not None
            if address is not None and base.block.offset != address:
                continue
            unsaved = position not in saved and not base.saved
            leaves = planned.get(base.tensor_id) is Action.DROP  # right after this call
            cheap = leaves or unsaved and not self.evicting.dear(base)
            if base.host is not None or cheap and self.evicting.lineage_of(base) is not None:
                return self._donate(output, base)
        return None

    def _donate(self, output: Storage, base: Storage) -> Block:
        """Write over an input that others may ask for again."""
        base.refs += 1  # the handles that remain will ask for it again: it is not free, only written over
        self._take_over(output, base)
        base.refs -= 1
        assert output.block is not None
        return output.block


# Which output may be written over which input, as pairs (output, input) --------------------------------------------
def may_be_written_over(signature: Signature, inputs: Sequence[Storage]) -> Iterator[tuple[int, int]]:
    """The pairs that the op allows and whose bytes coincide: the input is all of its base, and is used once."""
    for output, position in signature.donates:
        if _whole(inputs, position):
            yield output, position


def given_away(signature: Signature, inputs: Sequence[Storage], given: int) -> list[tuple[int, int]]:
    """Donations that cost nothing: the handle was given away, and nobody else can ask for the value.

    Leaves are not given away: what was computed from them may have to be computed again.
    """
    chosen: list[tuple[int, int]] = []
    for output, position in signature.donates:
        if not given >> position & 1 or chosen and any(output == o or position == p for o, p in chosen):
            continue
        base = inputs[position].base
        if base.refs == 1 and base.call is not None and _whole(inputs, position):
            chosen.append((output, position))
    return chosen


def _whole(inputs: Sequence[Storage], position: int) -> bool:
    """Whether an input is all of its base, and no other input has anything of that."""
    storage = inputs[position]
    base = storage.base
    return storage.nbytes == base.nbytes and [other.base for other in inputs].count(base) == 1
