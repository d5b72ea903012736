"""Which output may be written over which input. Pure questions about records.

Free donation: the caller gave away the last use of the input. Otherwise, when memory is short, the manager may also
write over an input that can be recomputed, or that has a copy on the host.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from minidl.memory.storage import Storage

Pair = tuple[int, int]  # (output, input)


def candidates(signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> Iterator[Pair]:
    """The pairs that the op allows and whose bytes coincide: the input is all of its base, in C order, used once."""
    for output, position in signature.op.donates:
        if position >= len(inputs):  # an optional input that was not given
            continue
        storage = inputs[position]
        base = storage.base
        meta = storage.meta
        if (base.nbytes == outputs[output].nbytes and meta.contiguous and meta.nbytes == base.nbytes
                and sum(other.base is base for other in inputs) == 1):
            yield output, position


def free(signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage], given: int) -> list[Pair]:
    """Donations that cost nothing: the handle was given away, and nobody else can ask for the value.

    Leaves are not given away: what was computed from them may have to be computed again.
    """
    chosen: list[Pair] = []
    for output, position in candidates(signature, inputs, outputs):
        base = inputs[position].base
        if (given >> position & 1 and base.refs == 1 and base.call is not None
                and all(output != o and position != p for o, p in chosen)):
            chosen.append((output, position))
    return chosen
