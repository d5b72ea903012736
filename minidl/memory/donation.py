"""Which output may be written over which input. Pure questions about records.

Free donation: the caller gave away the last use of the input. Otherwise, when memory is short, the manager may also
write over an input that can be recomputed, or that has a copy on the host.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from minidl.memory.storage import Storage
from minidl.meta import Meta

Pair = tuple[int, int]  # (output, input)


def candidates(signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> Iterator[Pair]:
    """The pairs that the op allows and whose bytes coincide: the input is all of its base, lies as the output will, and
    is used once."""
    for output, position in signature.op.donates:
        if position >= len(inputs):  # an optional input that was not given
            continue
        storage = inputs[position]
        base = storage.base
        meta, written = storage.meta, outputs[output].meta
        if (base.nbytes == written.nbytes and _lie_alike(meta, written) and meta.nbytes == base.nbytes
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


def _lie_alike(one: Meta, other: Meta) -> bool:
    """Whether two dense tensors have their elements in the same order."""
    if one.contiguous and other.contiguous:
        return True
    return one.shape == other.shape and one.strides == other.strides
