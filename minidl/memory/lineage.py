"""Lineage: finds the calls that must run again to compute a tensor. It reads the records of calls and runs none.

The calls start from tensors that have bytes, on the device or on the host. Each call is listed once, in program order,
however many paths lead to it: a chain of n residual blocks takes n calls, where recursion would take 2^n.
"""

from math import inf

from minidl.memory.storage import RECOMPUTE, Call, Storage


def missing_calls(target: Storage, most: float = inf) -> list[Call] | None:
    """The calls, oldest first, that compute ``target`` again; None if it cannot be computed again.
    If there are more than ``most`` calls, only ``most + 1`` of them. ``target`` itself may still have its bytes, so
    this also answers whether it could be dropped. A tensor cannot be computed again if that needs a leaf that is gone,
    a call that is not replayable, or a tensor that was written in place since."""
    calls: dict[int, Call] = {}
    wanted = [target]
    while wanted and len(calls) <= most:
        call = wanted.pop().call
        if call is None or not call.op.replayable:
            return None
        if call.sequence in calls:
            continue
        calls[call.sequence] = call
        for storage in call.inputs:
            base = storage.base
            if base.mutated_at > call.sequence:
                return None
            if base.status is RECOMPUTE:
                wanted.append(base)
    return [calls[sequence] for sequence in sorted(calls)]


def can_be_recomputed(target: Storage, writing: set[Storage], known: dict[int, bool]) -> bool:
    """True if ``target`` can be computed again without a read of any storage of ``writing``.
    known: for calls, by number, whether they can be replayed. It is read and extended, so that questions about many
    tensors of one lineage walk each call once."""
    found: dict[int, Call] = {}
    wanted = [target]
    while wanted:
        call = wanted.pop().call
        if call is not None and call.sequence not in known and call.sequence not in found:
            found[call.sequence] = call
            wanted += [s.base for s in call.inputs if s.base.status is RECOMPUTE]
    for sequence, call in sorted(found.items()):  # the calls that made a call's inputs come before it
        known[sequence] = call.op.replayable and all(
            base.mutated_at <= sequence and base not in writing and (
                base.status is not RECOMPUTE or base.call is not None and known[base.call.sequence])
            for base in [s.base for s in call.inputs])
    return target.call is not None and known[target.call.sequence]


def reads(calls: list[Call], storages: set[Storage]) -> bool:
    """True if a replay of these calls would read the bytes of any of these storages."""
    return bool(storages) and any(s.base in storages for call in calls for s in call.inputs)
