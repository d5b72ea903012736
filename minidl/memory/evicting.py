"""Who may leave the device, and how it leaves: by a copy to the host, or dropped, to be computed again.

The policy ranks; this carries out. A tensor that cannot leave in the way that the policy asks for leaves in the other:
without a lineage it is swapped instead of dropped, with a full host it is dropped instead of swapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf

from minidl.errors import UserError
from minidl.memory import neighbourhood
from minidl.memory.allocator import storage_of
from minidl.memory.bytes.block import Block
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.state import State
from minidl.memory.storage import IN, OUT, RECOMPUTE, Call, Storage
from minidl.plan.plan import Action
from minidl.plan.policy import Pressure, Residency

MOST_WEIGHED = 400  # tensors that are priced for one allocation, unless all must go
FRONT = 4  # tensors of the access list that a policy is asked about first
SMALL_SHIFT = 10  # tensors of less than a 2^10th of the bytes that are wanted are not weighed, unless all must go


class Evicting:
    """Takes tensors off the device, as the policy says and as far as they may."""

    def __init__(self, state: State) -> None:
        self.state = state

    # What the policy is told, and what it answers ------------------------------------------------------------
    def in_order(self, need: int, pinned: set[Storage]) -> Iterator[tuple[Storage, Action]]:
        """As ``victims``, of a policy that reads the access list from its front: asked about no more than is taken."""
        access_list = self.state.access_list
        assert access_list is not None
        offered: set[Storage] = set(pinned)
        count = FRONT
        while front := {s.tensor_id: s for s in access_list.front(need, offered, count)}:
            offered.update(front.values())
            yield from self._ranked(front, need).items()
            count *= 4

    def victims(self, need: int, pinned: set[Storage], *, every: bool = False) -> dict[Storage, Action]:
        """What the policy would evict for an allocation, most expendable first.

        need: bytes; pinned: operands of the call under way, which stay; every: ask about small tensors, too.
        """
        state = self.state
        selects = state.policy.weighs_recomputation and not state.policy.regime.one_piece and not every
        return self._ranked(self._worth_weighing(pinned, need) if selects else self.evictable(pinned), need)

    def willing(self, blocks: Iterable[Block], pinned: set[Storage], need: int) -> dict[Storage, Action]:
        """As ``victims``, of the owners of some blocks alone."""
        owners = [s for s in map(storage_of, blocks) if s is not None and s.status is IN and s not in pinned]
        return self._ranked({s.tensor_id: s for s in owners}, need)

    def _ranked(self, evictable: dict[int, Storage], need: int) -> dict[Storage, Action]:
        state = self.state
        host = state.allocator.host
        guide, tracker = state.guide, state.tracker
        call = guide.position if guide is not None else tracker.sequence - tracker.iteration_start
        trace = guide.active.trace if guide is not None and guide.active is not None else None
        pressure = Pressure(need, host.capacity, host.capacity - host.used_bytes, state.link_costs, call, trace)
        ranking = state.policy.victims([self._residency(storage) for storage in evictable.values()], pressure)
        try:
            return {evictable[tensor_id]: action for tensor_id, action in ranking if tensor_id in evictable}
        except (TypeError, ValueError) as error:
            raise UserError(f"policy {state.policy.name!r}: victims() must return a sequence of Eviction(tensor_id, "
                            f"action), not {type(ranking).__name__} of something else") from error

    def evictable(self, pinned: set[Storage], least: int = 0) -> dict[int, Storage]:
        """What may be evicted now, of at least so many bytes, by tensor id."""
        return {s.tensor_id: s for ref in self.state.residents
                if (s := ref()) is not None and s.nbytes >= least and s.status is IN and s not in pinned}

    def _worth_weighing(self, pinned: set[Storage], need: int) -> dict[int, Storage]:
        """Of what may be evicted the larger ones, and of very many every n-th; but all if these are not enough."""
        found = self.evictable(pinned, need >> SMALL_SHIFT)
        if len(found) > MOST_WEIGHED:
            step = -(-len(found) // MOST_WEIGHED)
            found = dict(islice(found.items(), self.state.tracker.sequence % step, None, step))
        enough = sum(s.nbytes for s in found.values()) + self.state.arena.free_bytes >= need
        return found if enough else self.evictable(pinned)

    def _residency(self, storage: Storage) -> Residency:
        """What a policy is told of a resident tensor."""
        state, block = self.state, storage.block
        assert block is not None
        seconds = None
        if state.policy.weighs_recomputation and storage not in state.protected:
            call = storage.call
            if not (state.writing and call is not None and reads([call], state.writing)):
                seconds = neighbourhood.PRICES[state.policy.regime.price](storage)
        tracker = state.tracker
        seen = storage.last_access >= tracker.iteration_start
        idle = tracker.sequence - max(storage.last_access, storage.replayed_at)
        before, after = block.previous, block.next
        return Residency(storage.tensor_id, block.size, block.offset, storage.first_access if seen else None,
                         storage.last_access if seen else None, storage.persistent, storage.host is not None, seconds,
                         idle, storage.replays, before.size if before is not None and before.owner is None else 0,
                         after.size if after is not None and after.owner is None else 0)

    # Leaving -------------------------------------------------------------------------------------------------
    def evict(self, storage: Storage, action: Action, *, at_any_price: bool = False) -> bool:
        """Take a storage off the device; False if neither the host has room nor lineage can make it again.

        at_any_price: what is on the host goes for it even where nobody can say what making it again would take.
        """
        if action is Action.DROP and self.lineage_of(storage) is not None:
            self.drop(storage)
        elif self.back_up(storage):
            self._leave(storage)
        elif self.lineage_of(storage) is not None:  # the host is full: swapping degrades to recomputation
            self.drop(storage)
        elif self._make_host_room(storage.nbytes, at_any_price) and self.back_up(storage):
            self._leave(storage)
        else:
            return False
        return True

    def _leave(self, storage: Storage) -> None:
        """The host has a copy: the block can go."""
        self.state.allocator.leave_device(storage)
        storage.become(OUT)

    def drop(self, storage: Storage) -> None:
        """Give up a storage's bytes, to be computed again when somebody asks for them."""
        self.state.allocator.leave_device(storage)
        self.give_up_copy(storage)

    def lineage_of(self, storage: Storage) -> list[Call] | None:
        """The calls that would make a storage again if it were dropped now; None if it must not be."""
        if storage in self.state.protected:
            return None
        calls = missing_calls(storage)
        return None if calls is None or reads(calls, self.state.writing) else calls

    def back_up(self, storage: Storage) -> bool:
        """Have a valid copy on the host, making room by forgetting copies of what is on the device anyway."""
        if storage.host is not None:
            return True
        state = self.state
        host = state.allocator.host
        if host.capacity - host.used_bytes < storage.nbytes:
            for ref in state.residents:
                other = ref()
                if other is not None and other.status is IN and other.host is not None:
                    state.allocator.forget_host_copy(other)
                    if host.capacity - host.used_bytes >= storage.nbytes:
                        break
        return state.allocator.swap_out(storage)

    def drop_kept(self, need: int, pinned: set[Storage]) -> None:
        """Give up what came by in replays, until so many bytes are free: it costs no copy, and nobody counted on it."""
        state = self.state
        for ref, count in list(state.kept.items()):
            if state.arena.free_bytes >= need:
                return
            storage = ref()
            if storage is None or storage.status is not IN or storage.access_count != count:
                del state.kept[ref]  # somebody else's by now
            elif storage not in pinned and self.lineage_of(storage) is not None:
                self.drop(storage)
                del state.kept[ref]

    def dear(self, storage: Storage) -> bool:
        """Whether it takes longer to make a storage again than to copy it out and in, under a policy that weighs this;
        a plan knows what it drops."""
        state = self.state
        if not state.policy.weighs_recomputation or state.guide is not None and state.guide.plans_ahead:
            return False
        seconds = neighbourhood.price(storage)
        return seconds is None or (
            seconds > state.device.out_seconds(storage.nbytes) + state.device.in_seconds(storage.nbytes))

    def _make_host_room(self, nbytes: int, at_any_price: bool) -> bool:
        """Give up what is on the host alone and can be made again, cheapest for its bytes first and what has no price
        last, if at all, until so many bytes are free there; False if they cannot be."""
        host = self.state.allocator.host
        swapped = [s for s in self.state.live() if s.status is OUT and s.nbytes]
        prices = [(inf if price is None else price / s.nbytes, s.tensor_id, s)
                  for s in swapped if (price := neighbourhood.price(s)) is not None or at_any_price]
        for _, _, storage in sorted(prices, key=lambda entry: entry[:2]):
            if host.capacity - host.used_bytes >= nbytes:
                break
            if self.lineage_of(storage) is not None:
                self.give_up_copy(storage)
        return host.capacity - host.used_bytes >= nbytes

    def give_up_copy(self, storage: Storage) -> None:
        """It has no bytes any more, though someone may still ask for them."""
        state = self.state
        state.allocator.forget_host_copy(storage)
        storage.become(RECOMPUTE)
        state.residents.pop(storage.me, None)
        state.dropped[storage.me] = None
        if state.policy.weighs_recomputation:
            neighbourhood.lost(storage)
