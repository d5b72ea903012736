"""The text by which ranks compare, before an exchange, what each of them is about to exchange.

If one is about to make another exchange, because it got another batch or took another branch, the texts differ and all
raise RanksDiverged; otherwise they would wait forever, or add up tensors that do not belong together.
"""

from collections.abc import Sequence
from typing import Any


def text_of(name: str, operands: Sequence[Any], *, turn: str, layout: str = "", **how: Any) -> str:
    """Return the text for an exchange of operands (outputs first) that have ``dtype.name`` and ``shape``.
    turn: the exchange's number (``ranks.consensus``). layout: more that must be equal. how: attributes, of which only
    ``rows`` is told."""
    x = operands[0 if name.startswith("gather") else -1]  # the same on all ranks, but for the rows of a slice
    of = f"rows {how['rows']}" if "rows" in how else f"{len(operands)} tensors"
    return f"{name} of {x.dtype.name}{list(x.shape)}, {of}{layout and ', layout '}{layout}, in {turn}"
