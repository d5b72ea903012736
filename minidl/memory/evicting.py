"""Evictions: the policy ranks tensors, and ``Evicting`` takes them off the device by swap-outs and drops.

If a tensor cannot leave in the way that the policy chose, it leaves in the other way: without a lineage it is swapped
out instead of dropped, and when the host is full it is dropped instead of swapped out.
"""

from collections.abc import Collection, Iterable, Iterator
from math import inf

from minidl.memory import neighbourhood
from minidl.memory.access_list import ResidentList
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, OUT, RECOMPUTE, Call, Storage
from minidl.plan.plan import ACTIONS, Action
from minidl.plan.policy import Pressure, Residency, require_victims

MOST_WEIGHED = 400  # tensors that a policy prices for one allocation, unless all must be evicted
FRONT = 4  # how many tensors at the front of the access list a policy is asked about first
SMALL_SHIFT = 10  # a tensor of less than 1/2^10 of the needed bytes is not priced, unless all must be evicted


class Evicting:
    """Asks the policy which tensors to evict, and evicts them."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    @property
    def looks_nearby(self) -> bool:
        """True if more tensors are on the device than the policy is asked about."""
        return not self.state.access_list.few

    # Asking the policy ---------------------------------------------------------------------------------------
    def batches(self, need: int, pinned: set[Storage]) -> Iterator[Collection[Storage]]:
        """Yield the tensors that the policy is asked about for ``need`` bytes, in one batch or in several.
        A policy that evicts from the front of a list is asked about a few tensors, then about four times as many,
        and so on. Others get one batch: all, or a sample of MOST_WEIGHED if they price replays. pinned: operands."""
        state = self.state
        if isinstance(state.access_list, ResidentList) and not state.access_list.few:
            yield from state.access_list.batches(need, pinned, FRONT)
        elif state.policy.moves_tensors:
            selects = state.policy.weighs_recomputation and not state.policy.regime.one_piece
            yield self._worth_pricing(pinned, need) if selects else self.evictable(pinned)

    def ask(self, storages: Iterable[Storage], need: int) -> dict[Storage, Action]:
        """Ask the policy which ``storages`` to evict for ``need`` bytes; return victim -> action, in the policy order.
        Raises UserError if the policy does not return a sequence of evictions of these tensors."""
        state, tracker = self.state, self.state.tracker
        host = state.allocator.host
        trace, call = state.hooks.recorded() or (None, tracker.sequence - tracker.iteration_start)
        pressure = Pressure(need, host.capacity, host.capacity - host.used_bytes, state.link_costs, call, trace)
        by_id = {storage.tensor_id: storage for storage in storages}
        ranking = state.policy.victims([*self._residencies(by_id.values())], pressure)
        try:
            ranking = [*ranking]
            return {by_id[tensor_id]: ACTIONS[ACTIONS.index(action)] for tensor_id, action in ranking}
        except (KeyError, TypeError, ValueError):
            require_victims(state.policy, ranking, by_id)
            raise

    def evictable(self, pinned: set[Storage], least: int = 0) -> list[Storage]:
        """The tensors on the device of at least ``least`` bytes, without those in ``pinned``."""
        return list({s.tensor_id: s for ref in self.state.live_refs if (s := ref()) is not None and s.nbytes >= least
                     and s.status is IN and s not in pinned}.values())

    def _worth_pricing(self, pinned: set[Storage], need: int) -> list[Storage]:
        """The evictable tensors that are not tiny compared with ``need`` bytes, at most MOST_WEIGHED of them.
        All evictable tensors, if these do not free ``need`` bytes."""
        found = self.evictable(pinned, need >> SMALL_SHIFT)
        if len(found) > MOST_WEIGHED:
            step = -(-len(found) // MOST_WEIGHED)
            found = found[self.state.tracker.sequence % step::step]
        enough = sum(s.nbytes for s in found) + self.state.arena.free_bytes >= need
        return found if enough else self.evictable(pinned)

    def _residencies(self, storages: Iterable[Storage]) -> Iterator[Residency]:
        """Yield the facts about tensors on the device that a policy sees."""
        state, tracker = self.state, self.state.tracker
        began, now, protected, writing = tracker.iteration_start, tracker.sequence, state.protected, state.writing
        price = state.price if state.policy.weighs_recomputation else None
        for s in storages:
            block, used, seconds = s.block, s.last_access, None
            assert block is not None
            if price is not None and s not in protected and not (
                    writing and s.call is not None and reads([s.call], writing)):
                seconds = price(s)
            before, after, seen = block.previous, block.next, used >= began
            yield Residency(s.tensor_id, block.size, block.offset, s.first_access if seen else None,
                            used if seen else None, s.persistent, s.host is not None, seconds,
                            now - max(used, s.replayed_at), s.replays,
                            before.size if before is not None and before.owner is None else 0,
                            after.size if after is not None and after.owner is None else 0)

    # Leaving -------------------------------------------------------------------------------------------------
    def evict(self, storage: Storage, action: Action, *, at_any_price: bool = False) -> bool:
        """Drop or swap out a storage, as ``action`` says or, if that fails, the other way; False if both fail.
        A drop fails if the storage cannot be recomputed now, a swap-out if the host is full and other tensors cannot
        give up enough copies there. at_any_price: tensors whose replay takes an unknown time give up theirs, too."""
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
        """Free the block of a storage that has a host copy."""
        self.state.allocator.leave_device(storage)
        storage.set_status(OUT)

    def drop(self, storage: Storage) -> None:
        """Free a storage's bytes on device and host; a replay computes the tensor when it is needed again."""
        self.state.allocator.leave_device(storage)
        self.give_up_copy(storage)

    def give_up_copy(self, storage: Storage) -> None:
        """Free the host copy of a storage that has no bytes on the device. When needed, it must be replayed."""
        state = self.state
        state.allocator.forget_host_copy(storage)
        storage.set_status(RECOMPUTE)
        state.live_refs.pop(storage.me, None)
        state.dropped[storage.me] = None
        neighbourhood.lost(storage)

    def lineage_of(self, storage: Storage) -> list[Call] | None:
        """The calls that would recompute a storage if it were dropped now; None if it must not be dropped."""
        if storage in self.state.protected:
            return None
        calls = missing_calls(storage)
        return None if calls is None or reads(calls, self.state.writing) else calls

    def back_up(self, storage: Storage) -> bool:
        """Copy a storage to the host, unless it has a host copy; False if the host is full.
        If the host lacks room, host copies of tensors that are also on the device are freed first."""
        if storage.host is not None:
            return True
        state = self.state
        host = state.allocator.host
        if host.capacity - host.used_bytes < storage.nbytes:
            for ref in state.live_refs:
                other = ref()
                if other is not None and other.status is IN and other.host is not None:
                    state.allocator.forget_host_copy(other)
                    if host.capacity - host.used_bytes >= storage.nbytes:
                        break
        return state.allocator.swap_out(storage)

    def dear(self, storage: Storage) -> bool:
        """True if replaying a storage takes longer than copying it out and back in, or has no known price.
        Without a plan it is False for policies that do not weigh recomputation."""
        state = self.state
        if not (state.policy.weighs_recomputation or state.hooks.acts):
            return False
        seconds = neighbourhood.price(storage)
        return seconds is None or (
            seconds > state.device.out_seconds(storage.nbytes) + state.device.in_seconds(storage.nbytes))

    def _make_host_room(self, nbytes: int, at_any_price: bool) -> bool:
        """Drop tensors that are only on the host until ``nbytes`` are free there; False if that is not possible.
        The first are those with the fewest replay seconds per byte; those of unknown time come last, and only if
        ``at_any_price``."""
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
