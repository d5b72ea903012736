"""Says how operations run on tensors in shards: by operations on the shards, through which gradients flow as usual.

``RULES`` has a function for some operations: (inputs, attributes) -> the result, or None if it does not apply.
"""

from collections.abc import Callable, Sequence

from minidl.dispatch import apply
from minidl.op import Attrs, Op
from minidl.ops.choose import compare, logical_and, where
from minidl.ops.elementwise import shift
from minidl.ops.embedding import EMBEDDING
from minidl.ops.linear import LINEAR
from minidl.ops.shape import CONCAT, NARROW, between, reshape
from minidl.parts.sharding.record import Sharded
from minidl.parts.slice_rules import Rule
from minidl.tensor import Tensor

Operands = Sequence[Tensor]


def _in_shards(x: Tensor) -> bool:
    return isinstance(x.storage, Sharded)


def _linear(operands: Operands, attrs: Attrs) -> Tensor | None:
    """Run a linear layer whose weight [out, in] is in shards: each shard computes some output features; concatenate."""
    x, w, *bias = operands
    if not isinstance(w.storage, Sharded) or any(map(_in_shards, (x, *bias))):
        return None
    made = [apply(LINEAR, x, shard, *[between(b, 0, start, stop) for b in bias])
            for shard, (start, stop) in zip(w.storage.shards, w.storage.bounds, strict=True)]
    return apply(CONCAT, *made, axis=x.ndim - 1)


def _embedding(operands: Operands, attrs: Attrs) -> Tensor | None:
    """Look up rows of an embedding table in shards: each row in the shard that has it.
    Row numbers below 0 go to the first shard, too large ones to the last; these refuse them as a whole table would."""
    w, ids = operands
    if not isinstance(w.storage, Sharded) or _in_shards(ids):
        return None
    y: Tensor | None = None
    last = len(w.storage.shards) - 1
    for i, (shard, (start, stop)) in enumerate(zip(w.storage.shards, w.storage.bounds, strict=True)):
        behind, before = compare(ids, start, ">="), compare(ids, stop, "<")
        own = before if i == 0 else behind if i == last else logical_and(behind, before)
        rows = apply(EMBEDDING, shard, where(own, shift(ids, -start), 0), **attrs)
        y = rows if y is None else where(reshape(own, (*ids.shape, 1)), rows, y)
    return y


def _narrow(operands: Operands, attrs: Attrs) -> Tensor | None:
    """Take a range of rows: a view, if all rows are of one shard; otherwise None, so that the shards are joined."""
    storage, start, stop = operands[0].storage, attrs["start"], attrs["stop"]
    assert isinstance(storage, Sharded)
    if attrs["axis"] == 0:
        for shard, (first, end) in zip(storage.shards, storage.bounds, strict=True):
            if first <= start and stop <= end:
                return apply(NARROW, shard, axis=0, start=start - first, stop=stop - first)
    return None


RULES: dict[str, Callable[[Operands, Attrs], Tensor | None]] = {
    "linear": _linear, "embedding": _embedding, "narrow": _narrow}


def separable(op: Op, operands: Operands, attrs: Attrs) -> Rule | None:
    """Return the operation's slicing rule if it can run shard by shard, else None.
    It can if it treats each row separately (or sums over rows), and if all its inputs in shards are cut alike."""
    in_shards = [x.storage.bounds if isinstance(x.storage, Sharded) else None for x in operands]
    rule = op.slices([x.meta for x in operands], attrs, [cut is not None for cut in in_shards]) if op.slices else None
    if rule is None or rule.counted or rule.first or rule.shared or rule.labels >= 0:
        return None
    if rule.whole and (rule.fold is None or len(op.outputs) > 1):
        return None
    cuts = [cut for cut in in_shards if cut is not None]
    rows = cuts[0][-1][1]
    taken = all(one for one, cut in zip(rule.along, in_shards, strict=True) if cut is not None)
    shapes = [x.shape for x, one in zip(operands, rule.along, strict=True) if one] + [attrs[s] for s in rule.shapes]
    alike = all(shape[0] == rows for shape in shapes)
    return rule if taken and alike and all(cut == cuts[0] for cut in cuts) else None
