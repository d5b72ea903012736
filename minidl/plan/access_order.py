"""The order of the tensor access list (Capuchin, section 4.2), in which resident tensors leave for an allocation.

Tensors that this iteration has accessed come before those that it has not. In each of the two groups, tensors of about
the needed size come first, then smaller ones, then larger ones; within a size band, the tensor accessed first leaves
first, because the backward pass needs it last. This is the only definition of that order: ``passive`` sorts by
``rank``, and the engine's index (``memory/access_list``) walks through ``bands``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from minidl.plan.policy import Residency


def bands(nbytes: int) -> tuple[tuple[int, float], ...]:
    """Return the size ranges (bytes, upper end excluded) in the order in which tensors leave for ``nbytes`` bytes."""
    return (nbytes, 2 * nbytes + 1), (0, nbytes), (2 * nbytes + 1, inf)


def rank(resident: Residency, nbytes: int) -> tuple[bool, int, int]:
    """Return a key that sorts residents into the order in which they leave for an allocation of ``nbytes`` bytes."""
    size, first = resident.nbytes, resident.first_access
    band = 1 if size < nbytes else 0 if size <= 2 * nbytes else 2  # of ``bands``, without a loop
    return first is None, band, -1 if first is None else first


def in_access_order(resident: Sequence[Residency], nbytes: int) -> list[Residency]:
    """Return residents in the order in which they leave for an allocation of ``nbytes`` bytes."""
    return sorted(resident, key=lambda each: rank(each, nbytes))
