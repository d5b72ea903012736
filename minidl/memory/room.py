"""Makes room for bytes on the device: the loop of on-demand memory. Each step is for bytes that are still missing.

    1. blocks that are being copied out already are reused: their next user waits for the copy
    2. tensors that replays have computed, and that the program has not read since, are dropped
    3. the policy ranks tensors, and they are evicted in this order
    4. tensors that replays under way still need are dropped, if they can be recomputed
    5. if enough bytes are free, but in no single hole, one hole is made of them (``one_hole``)

If all steps fail, a plan that is followed is given up, and the loop runs again; without a plan it raises OutOfMemory.
The operands of the call under way may be moved, but not evicted."""

from minidl.memory.bytes.block import Block
from minidl.memory.evicting import Evicting
from minidl.memory.leftovers import Leftovers
from minidl.memory.one_hole import OneHole
from minidl.memory.shortage import out_of_memory
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, Storage
from minidl.plan.plan import Action


class RoomMaker:
    """Finds blocks in the arena, and makes room if none is free."""

    def __init__(self, state: MemoryState, evicting: Evicting, leftovers: Leftovers) -> None:
        self.state = state
        self.evicting = evicting
        self.leftovers = leftovers
        self.one_hole = OneHole(state, evicting)

    def allocate(self, nbytes: int, owner: object, pinned: set[Storage], op_name: str, *, high: bool = False) -> Block:
        """Allocate a block of ``nbytes``, evicting as many tensors as it takes. Raises OutOfMemory.
        owner: the block's. high: near the top of the arena. pinned: operands of the call ``op_name``, which stay."""
        arena = self.state.arena
        block = arena.allocate(nbytes, owner, high=high)
        if block is None:
            self.make(nbytes, pinned, op_name)
            block = arena.allocate(nbytes, owner, high=high)
            assert block is not None
        return block

    def make(self, nbytes: int, pinned: set[Storage], op_name: str) -> None:
        """Evict what the policy names, and move blocks if need be, until a hole of ``nbytes`` is free.
        pinned: operands of the call ``op_name``, which are not evicted. Raises OutOfMemory if too little can leave."""
        state, arena, evicting = self.state, self.state.arena, self.evicting
        need = arena.rounded(nbytes)
        if need + self._in_use(pinned) > arena.capacity:
            return self._refuse(nbytes, pinned, op_name, alone=True)  # before anything is evicted in vain
        state.hooks.reclaim(need)
        if state.kept or state.shared:
            self.leftovers.drop(need, pinned)
        willing: dict[Storage, Action] = {}  # tensors that the policy would evict, and that are still here
        stuck: list[tuple[Storage, Action]] = []  # the host was full when their turn came
        for batch in evicting.batches(need, pinned):
            willing = evicting.ask(batch, need)
            neighbours = state.policy.regime.one_piece and self.one_hole.has_window(need, willing)
            for storage, action in list(willing.items()):
                if arena.fits(need) if neighbours else arena.free_bytes >= need:
                    break
                if evicting.evict(storage, action):
                    del willing[storage]
                else:
                    stuck.append((storage, action))
            if arena.free_bytes >= need:
                break
        for storage, action in stuck:
            if arena.free_bytes < need and evicting.evict(storage, action, at_any_price=True):
                willing.pop(storage, None)
        if arena.free_bytes < need and state.policy.moves_tensors:
            self.leftovers.free_unread(pinned)
            self.leftovers.drop_awaiting(need, pinned)
        if arena.free_bytes < need:
            return self._refuse(nbytes, pinned, op_name)
        if not arena.fits(need):
            self.one_hole.make(need, pinned, willing)
        if not arena.fits(need):
            self._refuse(nbytes, pinned, op_name)

    def _in_use(self, pinned: set[Storage]) -> int:
        """Bytes, rounded as in the arena, of the ``pinned`` operands that are on the device."""
        rounded = self.state.arena.rounded
        return sum([rounded(storage.nbytes) for storage in pinned if storage.block is not None])

    def _refuse(self, nbytes: int, pinned: set[Storage], op_name: str, *, alone: bool = False) -> None:
        """Try once more without the plan, if one is followed; otherwise raise OutOfMemory.
        alone: the call does not fit even an empty device."""
        if self.state.hooks.relent():
            return self.make(nbytes, pinned, op_name)
        raise out_of_memory(self.state, self.state.arena.rounded(nbytes), op_name, in_use=self._in_use(pinned),
                            pinned=pinned, evictable=self.evicting.evictable(pinned), alone=alone)


def with_bytes(*storages: Storage) -> set[Storage]:
    """The bases of ``storages`` that are on the device. An input that has donated its bytes is not one of them."""
    return {storage.base for storage in storages if storage.base.status is IN}
