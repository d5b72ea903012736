"""The one check that a plan is for a trace: of plans from files and checkpoints, and of those that policies make."""

from collections.abc import Iterator
from itertools import chain
from math import inf
from operator import index

from minidl.meta import ALIGNMENT
from minidl.outside.validation import shown
from minidl.plan.plan import ACTIONS, Plan
from minidl.plan.trace import Trace

LISTS = ("prefetches", "releases", "replays", "spent", "moves")  # the parts of a plan that are tuples, by accesses


def mistake(plan: Plan, trace: Trace, device_bytes: float = inf) -> str | None:
    """Return, as text, the first thing in a plan that its trace does not have; None if the plan has no such thing.
    device_bytes: addresses end there. The time is in proportion to the plan and the trace."""
    try:
        return next(_mistakes(plan, trace, device_bytes), None)
    except (AttributeError, TypeError, ValueError) as error:
        return f"a part of it is not of the type that plan.plan.Plan names: {error}"


def no_action(action: object) -> str:
    """Return the words that say that a value is no action, and what to write."""
    return f"the action {shown(repr(action))}: write Action.SWAP_OUT or Action.DROP, of minidl.plan.plan"


def _mistakes(plan: Plan, trace: Trace, device_bytes: float) -> Iterator[str]:
    tensors, uses, calls = trace.tensors, trace.uses, trace.calls
    for name in LISTS:
        for key, each in getattr(plan, name).items():
            if not isinstance(each, tuple):
                yield f"its {name} after access {key} are {shown(repr(each))}, which is no tuple"
    for tensor_id, count in chain(plan.evictions, plan.waits, *(getattr(plan, name) for name in LISTS)):
        if not 1 <= count <= len(uses.get(tensor_id, ())):
            yield f"it names access {count} of tensor {tensor_id}, which has {len(uses.get(tensor_id, ()))}"
    evicted = {tensor_id for tensor_id, _ in plan.evictions}
    for tensor_id in chain(*plan.prefetches.values()):
        if tensor_id not in evicted:
            yield f"it swaps in tensor {tensor_id}, which it does not evict"
    leaving = [*chain(*plan.releases.values(), *plan.spent.values())]
    for tensor_id in chain((tensor_id for tensor_id, _ in leaving), *plan.replays.values()):
        if tensor_id not in tensors:
            yield f"it releases or replays tensor {tensor_id}, unused in this iteration"
    for (tensor_id, _), action in chain(plan.evictions.items(), (((each[0], 0), each[1]) for each in leaving)):
        if action not in ACTIONS:
            yield f"it gives tensor {tensor_id} {no_action(action)}"
    for position, name in plan.algorithms.items():
        if not 0 <= position < len(calls) or all(name != each.name for each in calls[position].algorithms):
            yield f"it chooses algorithm {name!r} for call {position}, which does not have it here"
    places = ((tensor_id, offset) for (tensor_id, _), offset in plan.offsets.items())
    for tensor_id, offset in chain(places, *plan.moves.values()):
        if tensor_id not in tensors:
            yield f"it gives an address to tensor {tensor_id}, unused in this iteration"
        elif index(offset) % ALIGNMENT or offset < 0:
            yield f"it gives tensor {tensor_id} the address {offset}, which is no multiple of {ALIGNMENT} from 0 on"
        elif offset + tensors[tensor_id].nbytes > device_bytes:
            yield (f"it gives tensor {tensor_id}, of {tensors[tensor_id].nbytes} bytes, the address {offset}, and the "
                   f"device has {device_bytes} bytes")
