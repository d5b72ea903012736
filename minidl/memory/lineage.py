"""Lineage: the calls that must be replayed to compute a value again. Reads records; replays nothing.

A replay starts from tensors that have bytes, on the device or on the host. It is one list of calls in program order,
each at most once, however many paths lead to it: a residual chain costs its length, not two to its power.
"""

from math import inf

from minidl.memory.storage import RECOMPUTE, Call, Storage


def missing_calls(target: Storage, most: float = inf) -> list[Call] | None:
    """The calls, oldest first, that compute ``target`` again; None if its lineage is broken. If there are more than
    ``most``, only ``most + 1`` of them.

    ``target`` counts as missing whatever its status, so this also answers "could it be dropped?". Lineage is broken by
    a leaf that is gone, by a call that is not replayable, and by a write in place after a call has read its input.
    """
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
    """True if ``target`` has a lineage that reads no storage of ``writing``.

    ``known`` holds the answers for calls, by number. It is read and extended, so that questions about all tensors of a
    long replay do not walk all of it each time.
    """
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
