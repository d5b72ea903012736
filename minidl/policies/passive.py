"""Passive mode, on-demand swapping of whole tensors (Capuchin, section 4.2), and the order in which tensors leave.

When an allocation fails, tensors leave from the front of the access list, the list of resident tensors in the order of
their first accesses. Tensors that this iteration has accessed come before the others. In each of these groups, tensors
of about the needed size come first, then smaller ones, then larger ones; within a range of sizes, the tensor accessed
first, because the backward pass reads it last. This is the only definition of that order: the engine's index
(``memory/access_list``) walks through ``bands``.
"""

from collections.abc import Sequence
from math import inf

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency


class Passive(OnDemand):
    """Swaps out tensors from the front of the access list, those accessed first in this iteration."""

    name = "passive"
    reads_from_front = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return swap-outs of all residents, from the front of the access list."""
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in in_access_order(resident, pressure.nbytes)]


def in_access_order(resident: Sequence[Residency], nbytes: int) -> list[Residency]:
    """Return residents in the order in which they leave for an allocation of ``nbytes``."""
    return sorted(resident, key=lambda each: rank(each, nbytes))


def rank(resident: Residency, nbytes: int) -> tuple[bool, int, int]:
    """Return a sort key for a resident: the smallest leaves first for an allocation of ``nbytes``."""
    size, first = resident.nbytes, resident.first_access
    band = 1 if size < nbytes else 0 if size <= 2 * nbytes else 2  # of ``bands``, without a loop
    return first is None, band, -1 if first is None else first


def bands(nbytes: int) -> tuple[tuple[int, float], ...]:
    """Return the ranges of tensor sizes (bytes, upper end excluded) in the order in which they leave for ``nbytes``."""
    return (nbytes, 2 * nbytes + 1), (0, nbytes), (2 * nbytes + 1, inf)
