"""Writes the OutOfMemory error of an allocation that fails, with the numbers that explain it."""

from collections.abc import Collection

from minidl.errors import OutOfMemory
from minidl.memory.state import MemoryState
from minidl.memory.storage import Storage
from minidl.outside.units import format_bytes


def out_of_memory(state: MemoryState, need: int, op_name: str, *, in_use: int, pinned: Collection[Storage],
                  evictable: Collection[Storage], alone: bool) -> OutOfMemory:
    """Return the error of a call that found no room for an allocation of ``need`` bytes.
    in_use: bytes of the call's own operands. pinned: these operands. evictable: the tensors that are still on the
    device and are no operands of the call. alone: the call does not fit even an empty device."""
    arena, host, policy = state.arena, state.allocator.host, state.policy
    resident = len(evictable)
    text = (f"{op_name}: need {format_bytes(need)} beside {format_bytes(in_use)} in use by it; "
            f"{format_bytes(arena.free_bytes)} of {format_bytes(arena.capacity)} free, "
            f"{resident} tensors resident")
    wasted = sum(s.block.size - arena.rounded(s.nbytes) for s in pinned if s.block is not None)
    scattered = not arena.compacts and not alone and arena.free_bytes + wasted >= need
    host_full = policy.moves_tensors and policy.regime.swaps and not scattered and (
        not alone and any(s.host is None and host.used_bytes + s.nbytes > host.capacity for s in evictable)
        or host.used_bytes + need > host.capacity)
    if scattered:
        text += (f"; fragmentation: the largest free block has {format_bytes(arena.largest_free)}, the blocks in use "
                 f"are {format_bytes(wasted)} larger than needed, and nothing may be moved")
    elif not policy.moves_tensors:
        text += f"; policy {policy.name!r} evicts nothing"
    elif resident and not alone and not host_full:
        text += f"; policy {policy.name!r} let none of them go"
    error = OutOfMemory(text, op=op_name, need_bytes=need + in_use, budget_bytes=arena.capacity)
    return with_full_host(state, error) if host_full else error


def with_full_host(state: MemoryState, error: OutOfMemory) -> OutOfMemory:
    """Return the error with a note that host memory is full; unchanged if it has one, or the policy never swaps."""
    if error.host_full or not state.policy.regime.swaps:
        return error
    host = state.allocator.host
    text = (f"{error}; host memory is full ({format_bytes(host.used_bytes)} of {format_bytes(host.capacity)} in "
            "use, and the rest is too small)")
    return OutOfMemory(text, op=error.op, need_bytes=error.need_bytes, budget_bytes=error.budget_bytes, host_full=True)
