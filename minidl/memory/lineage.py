"""Lineage: which calls must be replayed to have a value again. Reads records; replays nothing.

A replay starts from what has bytes (on the device or the host). It is one list of calls in program order, each at
most once, however many paths lead to it: a residual chain costs its length, not two to its power.
"""

from math import inf

from minidl.memory.storage import RECOMPUTE, Call, Storage
from minidl.op import Op, Signature

FAILED = Op("failed", lambda: (), replayable=False)
"""What stands as the call that made a tensor, once it is known that it was never made; ``reason`` is its attribute."""

_SIGNATURE = Signature(FAILED, (), (), ())


def failed_call(reason: str) -> Call:
    """The call of a tensor that was never made."""
    return Call(FAILED, (), {"reason": reason}, (), 0, _SIGNATURE)


def missing_calls(target: Storage, most: float = inf) -> list[Call] | None:
    """The calls, oldest first, that make ``target`` again; None if lineage does not allow it. Of more than ``most``
    only that many and one are found.

    ``target`` counts as missing whatever its state, so this also answers "could it be dropped?". Lineage does not
    allow it where a leaf is gone, a call is not replayable, or an input was written in place after the call read it.
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


def can_be_made_again(target: Storage, writing: set[Storage], known: dict[int, bool]) -> bool:
    """Whether there are missing calls that make ``target`` again, none of which reads what is being written.

    ``known`` has what was found of calls, by number; it is looked up, and added to, so that who asks about each tensor
    of a long replay does not walk all of it each time.
    """
    found: dict[int, Call] = {}
    wanted = [target]
    while wanted:
        call = wanted.pop().call
        if call is not None and call.sequence not in known and call.sequence not in found:
            found[call.sequence] = call
            wanted += [s.base for s in call.inputs if s.base.status is RECOMPUTE]
    for sequence, call in sorted(found.items()):  # what a call reads is known before it
        known[sequence] = call.op.replayable and all(
            base.mutated_at <= sequence and base not in writing and (
                base.status is not RECOMPUTE or base.call is not None and known[base.call.sequence])
            for base in [s.base for s in call.inputs])
    return target.call is not None and known[target.call.sequence]


def reason(target: Storage) -> str:
    """Why a value cannot be computed again, where a failed call is what it would take; else ""."""
    seen: set[int] = set()
    wanted = [target]
    while wanted:
        call = wanted.pop().call
        if call is None or id(call) in seen:
            continue
        seen.add(id(call))
        if call.op is FAILED:
            return str(call.attrs["reason"])
        wanted += [s.base for s in call.inputs if s.base.status is RECOMPUTE]
    return ""


def reads(calls: list[Call], storages: set[Storage]) -> bool:
    """Whether a replay would read any of these storages' bytes."""
    return bool(storages) and any(s.base in storages for call in calls for s in call.inputs)
