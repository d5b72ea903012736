"""The order of the tensor access list (Capuchin, section 4.2): which resident tensor leaves first for an allocation.

Tensors that this iteration has accessed come before those that it has not. Of either kind tensors of about the needed
size come first, then smaller ones, then larger ones; and within a size band the one that was accessed first, since in
the backward pass it is wanted last. This is the only definition of that order: ``passive`` sorts by ``rank``, and
the engine's index (``memory/access_list``) goes through ``bands``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from minidl.plan.policy import Residency


def bands(nbytes: int) -> tuple[tuple[int, float], ...]:
    """The ranges of sizes (bytes, the upper end excluded) in the order in which tensors leave for ``nbytes``."""
    return (nbytes, 2 * nbytes + 1), (0, nbytes), (2 * nbytes + 1, inf)


def rank(resident: Residency, nbytes: int) -> tuple[bool, int, int]:
    """A key that sorts residents into the order in which they leave for an allocation of ``nbytes``."""
    size, first = resident.nbytes, resident.first_access
    band = 1 if size < nbytes else 0 if size <= 2 * nbytes else 2  # of ``bands``, without a loop
    return first is None, band, -1 if first is None else first


def in_access_order(resident: Sequence[Residency], nbytes: int) -> list[Residency]:
    """Residents in the order in which they leave for an allocation of ``nbytes``."""
    return sorted(resident, key=lambda each: rank(each, nbytes))
