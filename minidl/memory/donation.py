"""Which output may be written over which input. Pure questions about records.

Free donation: the caller gave away the last use of the input. Otherwise, when memory is short, the manager may also
write over an input that can be recomputed, or that has a copy on the host.
"""

from collections.abc import Iterator, Sequence

from minidl.memory.storage import Storage
from minidl.op import Signature

Pair = tuple[int, int]  # (output, input)


def candidates(signature: Signature, inputs: Sequence[Storage]) -> Iterator[Pair]:
    """The pairs that the op allows and whose bytes coincide: the input is all of its base, and is used once."""
    for output, position in signature.donates:
        if _whole(inputs, position):
            yield output, position


def free(signature: Signature, inputs: Sequence[Storage], given: int) -> list[Pair]:
    """Donations that cost nothing: the handle was given away, and nobody else can ask for the value.

    Leaves are not given away: what was computed from them may have to be computed again.
    """
    chosen: list[Pair] = []
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
