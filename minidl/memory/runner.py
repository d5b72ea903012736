"""Runs one call on the device: places its outputs, launches it, and takes its workspace back.

An output gets the bytes of an input that donates them, a free block, or a block that evictions make free. An input
donates if the program uses it for the last time. When memory is short, an input donates, too, if it has a host copy, if
the plan drops it next, or if its replay is not dear (``Evicting.dear``); as a last resort, any input that can be copied
to the host or recomputed. So an operation whose aligned working set (inputs, outputs and smallest workspace) fits the
budget always runs, if tensors may be evicted, blocks may be moved, and host memory has room.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from threading import get_ident

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.errors import OutOfMemory
from minidl.memory import neighbourhood
from minidl.memory.bytes.block import Block
from minidl.memory.evicting import Evicting
from minidl.memory.freeing import Freeing
from minidl.memory.room import RoomMaker, with_bytes
from minidl.memory.shortage import with_full_host
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, OUT, RECOMPUTE, Storage, View
from minidl.memory.workspace import Workspaces
from minidl.meta import Algorithm
from minidl.op import Attrs, Signature


class CallRunner:
    """Places the outputs and the workspace of calls, and launches them."""

    def __init__(self, state: MemoryState, freeing: Freeing, room: RoomMaker, evicting: Evicting) -> None:
        self.state = state
        self.freeing = freeing
        self.room = room
        self.evicting = evicting
        self.workspaces = Workspaces(state, room)
        self.coupled = not state.switches.decoupled_swap
        self._overlapped = (0, 0)  # positions of the last copies, out and in, that were queued before the last call
        self._donors: list[Storage] = []  # inputs that have donated; each keeps its field ``block`` until the launch

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf bytes on the device, uninitialised. Raises OutOfMemory."""
        state = self.state
        state.thread = get_ident()
        self.freeing.free_queued()
        with state.arena_busy:
            storage.block = self.room.allocate(storage.nbytes, storage.me, set(), "allocate", high=storage.persistent)
        state.device.wait_marks(COMPUTE, storage.block.marks)
        storage.status = IN
        state.live_refs[storage.me] = None
        state.access_list.touch((storage,))

    def run(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
            donated: int, saved: Sequence[int], timed: Callable[[float], None]) -> Algorithm:
        """Place the outputs of a call whose inputs are resident, and launch it; returns the algorithm that runs.
        donated: bit i is set if input i is used for the last time. saved: indices of the tensors that the call saves
        for its gradient. timed: called with the call's seconds on the device. Raises OutOfMemory, or the error of a
        copy; then no output is placed."""
        state = self.state
        state.thread = get_ident()
        if state.orphans:
            self.freeing.free_queued()
        if self.coupled:
            self._wait_for_copies()
        busy = state.arena_busy
        busy.on = True  # kept flat: every operation comes here
        try:
            algorithm, workspace = self._place(signature, inputs, outputs, donated, saved)
        except BaseException:
            self._end_donations()
            busy.on = False
            for output in outputs:
                if output.block is not None:
                    self.freeing.deallocate(output)
            raise
        busy.on = workspace is not None  # nothing may be freed before it is given back: a free block could swallow it
        try:
            state.device.launch(signature.op.name, algorithm, outputs, inputs, attrs,
                                workspace.offset if workspace else 0, timed)
        finally:
            if workspace is not None:  # its next user comes after this call on the stream
                state.allocator.take_back(workspace, algorithm.workspace)
                busy.on = False
            if self._donors:
                self._end_donations()
        if not state.access_list.stale:
            state.access_list.touch((*inputs, *outputs))
        return algorithm

    def _place(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
               donated: int, saved: Sequence[int]) -> tuple[Algorithm, Block | None]:
        """Place each output; returns the algorithm that the free memory allows, and its workspace or None."""
        state, hooks = self.state, self.state.hooks
        arena, places = state.arena, hooks.places
        if donated and signature.donates:
            for target, position in free_donations(signature, inputs, donated):
                base = inputs[position].base
                if not (state.impure and self.freeing.starts_a_replay(base)):
                    self._donate(outputs[target], base)
                    state.tracker.donated(outputs[target].tensor_id, base.tensor_id)
        for output in outputs:
            if output.block is None:
                high = signature.op.long_lived or places  # outputs without an address keep out of the others' way
                block = hooks.place(output, partial(self._donated_block, signature, inputs, outputs, output, saved),
                                    self._donated_blocks, lambda: with_bytes(*inputs, *outputs)) if places else None
                if block is None and (block := arena.allocate(output.nbytes, output.me, high=high)) is None:
                    block = (hooks.gather(output.nbytes, output.me, high=high)
                             or self._make_room(signature, inputs, outputs, output, saved))
                if block.marks[1] or block.marks[2]:  # copies used it: the compute stream does not wait for itself
                    state.device.wait_marks(COMPUTE, block.marks)
                if output.block is None:  # no input has donated its bytes
                    output.block = block
                    output.residency += 1
                    output.status = IN
                    state.live_refs[output.me] = None
        algorithm = signature.algorithms[0]
        return self.workspaces.choose(signature, (*inputs, *outputs)) if algorithm.workspace else (algorithm, None)

    def _wait_for_copies(self) -> None:
        """Let the next call wait for the copies that ran beside the last one (if ``decoupled_swap`` is off)."""
        device, (out, back_in) = self.state.device, self._overlapped
        device.wait(COMPUTE, COPY_OUT, out)
        device.wait(COMPUTE, COPY_IN, back_in)
        self._overlapped = device.positions[COPY_OUT], device.positions[COPY_IN]

    def _make_room(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                   output: Storage, saved: Sequence[int]) -> Block:
        """Return a block for ``output`` when none is free. Raises OutOfMemory.
        Three ways are tried in this order: an input that can be brought back at low cost donates its block; tensors are
        evicted; an input that can be copied to the host or recomputed at all donates its block."""
        arena = self.state.arena
        if arena.free_bytes < arena.rounded(output.nbytes):
            block = self._donated_block(signature, inputs, outputs, output, saved)
            if block is not None:
                return block
        high = signature.op.long_lived
        while True:
            try:
                self.room.make(output.nbytes, with_bytes(*inputs, *outputs), signature.op.name)
                block = arena.allocate(output.nbytes, output.me, high=high)
                assert block is not None
                return block
            except OutOfMemory as error:
                for _, base in self._candidates(signature, inputs, outputs, output):
                    if self.evicting.back_up(base) or self.evicting.lineage_of(base) is not None:  # at any price
                        return self._donate_shared(output, base)
                if not self._exchange(signature, inputs, outputs, output):
                    # Other inputs might donate, but the host has no room for copies of them.
                    stuck = any(self._candidates(signature, inputs, outputs, each) for each in outputs)
                    raise with_full_host(self.state, error) if stuck else error from None
            block = arena.allocate(output.nbytes, output.me, high=high)
            if block is not None:
                return block

    # Donation ------------------------------------------------------------------------------------------------
    def _donate(self, output: Storage, base: Storage) -> None:
        """Give the block of the input ``base`` to ``output``. The input loses its bytes when the call is launched."""
        state, block = self.state, base.block
        assert block is not None
        output.block = block
        output.residency += 1
        block.owner = output.me
        self._donors.append(base)
        output.status = IN
        state.live_refs[output.me] = None
        if base.host is not None:  # a copy that is still under way reads the bytes that the call is about to overwrite
            state.device.wait(COMPUTE, COPY_OUT, base.copied_out)
            base.set_status(OUT)
        else:
            base.set_status(RECOMPUTE)
            state.live_refs.pop(base.me, None)
            if base.refs > 1:  # it has more uses than the donated handle
                state.dropped[base.me] = None
                neighbourhood.read_again(base)

    def _donate_shared(self, output: Storage, base: Storage) -> Block:
        """Donate the block of an input that the program still needs, and return the block.
        The input's status is then RECOMPUTE or OUT: a replay or a swap-in brings it back."""
        base.refs += 1
        self._donate(output, base)
        base.refs -= 1
        assert output.block is not None
        return output.block

    def _donated_block(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                       output: Storage, saved: Sequence[int], address: int | None = None) -> Block | None:
        """Let an input that can be brought back donate its block to ``output``; None if there is no such input.
        Such an input has a host copy, or a replay that is cheaper than a swap, or the plan drops it next. address: if
        given, only a block at this address will do."""
        for position, base in self._candidates(signature, inputs, outputs, output):
            assert base.block is not None
            if address is not None and base.block.offset != address:
                continue
            unsaved = position not in saved and not base.saved
            cheap = self.state.hooks.drops_next(base) or unsaved and not self.evicting.dear(base)
            if base.host is not None or cheap and self.evicting.lineage_of(base) is not None:
                return self._donate_shared(output, base)
        return None

    def _exchange(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                  output: Storage) -> bool:
        """Give an input's block to an earlier output of the call, and free that output's own; False if no input can."""
        taken = {base.block for base in self._donors}
        for earlier in outputs[:outputs.index(output)]:
            if earlier.block in taken:
                continue
            for _, base in self._candidates(signature, inputs, outputs, earlier):
                if self.evicting.back_up(base) or self.evicting.lineage_of(base) is not None:
                    self.state.allocator.leave_device(earlier)
                    earlier.residency -= 1  # its stay on the device goes on
                    self._donate_shared(earlier, base)
                    return True
        return False

    def _end_donations(self) -> None:
        """Take the blocks off the inputs that have donated, after the call was launched."""
        for storage in self._donors:
            storage.block = None
        self._donors.clear()

    def _donated_blocks(self) -> Collection[Block]:
        """The blocks of the inputs that have been donated to outputs of the call under way."""
        return [base.block for base in self._donors if base.block]

    def _candidates(self, signature: Signature, inputs: Sequence[Storage], outputs: Sequence[Storage],
                    output: Storage) -> list[tuple[int, Storage]]:
        """The inputs (position, base) whose bytes ``output`` could take, if they are brought back later."""
        if not self.state.policy.moves_tensors:
            return []
        index = outputs.index(output)
        return [(p, inputs[p].base) for o, p in may_donate(signature, inputs)
                if o == index and inputs[p].base.status is IN]


# Which input may donate to which output, as pairs (output, input) ----------------------------------------------------
def may_donate(signature: Signature, inputs: Sequence[Storage]) -> Iterator[tuple[int, int]]:
    """Yield the pairs (output, input) of positions in which the output can take the input's bytes.
    The operation must allow it, the input must cover its whole base, and no other input may use that base."""
    for output, position in signature.donates:
        if _whole(inputs, position):
            yield output, position


def free_donations(signature: Signature, inputs: Sequence[Storage], donated: int) -> list[tuple[int, int]]:
    """Choose the donations that cost nothing, as pairs (output, input): the input has no later use.
    donated: bit i is set if input i is used for the last time. Leaves do not donate: replays may have to read them."""
    chosen: list[tuple[int, int]] = []
    for output, position in signature.donates:
        if not donated >> position & 1 or chosen and any(output == o or position == p for o, p in chosen):
            continue
        base = inputs[position].base
        if base.refs == 1 and base.call is not None and _whole(inputs, position):
            chosen.append((output, position))
    return chosen


def _whole(inputs: Sequence[Storage], position: int) -> bool:
    """True if the input at ``position`` covers its whole base, and no other input has the same base."""
    storage = inputs[position]
    if View not in map(type, inputs):
        return inputs.count(storage) == 1
    base = storage.base
    return storage.nbytes == base.nbytes and [other.base for other in inputs].count(base) == 1
