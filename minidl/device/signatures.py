"""Finds and stores signatures: everything that follows from an operation, its inputs' metas and its fixed attributes.

That is the outputs' metas, the permitted algorithms and the number of floating-point operations.
"""

from collections.abc import Iterable
from typing import Any

from minidl.device.contract import Choices
from minidl.meta import Meta
from minidl.op import Attrs, Op, Signature

SIGNATURES = 1 << 14  # signatures that are stored, at least; about 2 KiB each

Key = tuple[Any, ...]  # the operation, its fixed attributes as (name, value), the descriptions of its inputs


class Signatures:
    """The signatures of one executor.

    by_key  the signature of each kind of call so far: the executor looks here first
    saved   by signature and needed gradients: which of inputs + outputs a call saves, as indices
    most    the number of signatures from which on the executor calls ``forget``
    """

    def __init__(self, device: Choices, *, deterministic: bool, saves_all: bool) -> None:
        """saves_all: every call saves all inputs and outputs for its gradient, not only those that its formula names.
        """
        self.device = device
        self.deterministic = deterministic
        self.saves_all = saves_all
        self.by_key: dict[Key, Signature] = {}
        self.saved: dict[tuple[Signature, tuple[bool, ...]], tuple[int, ...]] = {}
        self.most = SIGNATURES

    def add(self, key: Key, op: Op, metas: tuple[Meta, ...], attrs: Attrs) -> Signature:
        """Compute and store the signature of a call whose key has none yet.
        Raises ShapeError if the operation does not take tensors of these descriptions."""
        signature = self.by_key[key] = self._sign(op, metas, attrs)
        return signature

    def _sign(self, op: Op, metas: tuple[Meta, ...], attrs: Attrs) -> Signature:
        outputs = op.describe(metas, attrs)
        if op.view:
            return Signature(op, metas, outputs, ())
        outputs = self.device.lay_out(op.name, metas, outputs)
        cost = op.cost(metas, outputs, attrs)
        found = self.device.algorithms(op.name, metas, outputs, attrs, cost)
        algorithms = tuple(a for a in found if not self.deterministic or a.bits_class == found[0].bits_class)
        return Signature(op, metas, outputs, tuple(sorted(algorithms, key=lambda a: (a.seconds, a.workspace))),
                         cost.flops)

    def saves(self, signature: Signature, attrs: Attrs, needs: tuple[bool, ...]) -> tuple[int, ...]:
        """Return which of inputs + outputs a call of this signature saves for its gradient, as indices.
        needs: for each input, True if its gradient is needed."""
        if (known := self.saved.get((signature, needs))) is not None:
            return known
        count = len(signature.inputs)
        found = self.saved[signature, needs] = (tuple(range(count + len(signature.outputs))) if self.saves_all
                                                else signature.op.saved_indices(attrs, needs, count))
        return found

    def forget(self, needed: Iterable[Signature]) -> None:
        """Delete all signatures but the ``needed`` ones, to bound memory: a program's other shapes may never recur."""
        known = set(needed)
        for key in [key for key, signature in self.by_key.items() if signature not in known]:
            del self.by_key[key]
        for pair in [pair for pair in self.saved if pair[0] not in known]:
            del self.saved[pair]
        self.most = max(SIGNATURES, 2 * len(self.by_key))
