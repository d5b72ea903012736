"""Decides whether a call can run slice by slice, from the sizes of its inputs' slices."""

from collections.abc import Iterable

from minidl.memory.storage import Storage
from minidl.op import Attrs, Op
from minidl.parts.slice_rules import Rule, scaled
from minidl.parts.slicing.logical import Logical


def is_divided(inputs: Iterable[Storage]) -> bool:
    """True if one of some tensors is divided among the ranks by its rows."""
    return any(isinstance(x, Logical) and x.divided for x in inputs)


def rule_of(op: Op, inputs: tuple[Storage, ...], attrs: Attrs) -> tuple[Rule | None, tuple[int, ...]]:
    """Return the rule by which a call runs slice by slice, and the number of examples of each slice.
    (None, ()) if the operation has no rule, or if its inputs cannot be cut into slices of the same numbers of
    examples."""
    sliced = [isinstance(x, Logical) and bool(x.sizes) for x in inputs]
    rule = op.slices([x.meta for x in inputs], attrs, sliced) if op.slices is not None and any(sliced) else None
    if rule is None or is_divided(inputs) and (rule.whole or rule.shared):
        return None, ()  # a sum over a divided tensor's slices would have other bits than a sum over the tensor
    taken = [x for x, along in zip(inputs, rule.along, strict=True) if along]
    cuts = [x.sizes for x in taken if isinstance(x, Logical) and x.sizes]
    if not cuts:
        return None, ()
    sizes, total = cuts[0], sum(cuts[0])
    # Others may have several rows for an example, or fewer, but the same examples in each slice.
    if any(other[i] * total != size * sum(other) for other in cuts[1:] for i, size in enumerate(sizes)):
        return None, ()
    shapes = [x.meta.shape for x in taken] + [attrs[name] for name in rule.shapes]
    if any(scaled(shape, size, total) is None for shape in shapes for size in sizes):
        return None, ()
    return rule, sizes
