"""Coop (NeurIPS 2023, OneFlow): evict tensors that lie side by side, so that the freed bytes form one hole.

It tries every window: neighbouring holes and recomputable tensors in address order (Zhang et al., "Coop: Memory is not
a Commodity"). A tensor that cannot leave ends a window. Of the windows that are large enough, the one with the least
sum of cost / staleness is evicted. The other tensors follow by that cost. Coop's allocator puts costly results at one
end of memory and cheap ones at the other; that is left out, because here the placement chooses addresses.
"""

from collections.abc import Iterator, Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Price, Regime, Residency


class Coop(OnDemand):
    """Drops the tensors of the cheapest window: neighbours in memory that are quick to recompute."""

    name = "coop"
    weighs_recomputation = True
    regime = Regime(swaps=False, one_piece=True, price=Price.NEIGHBOURHOOD)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return drops: the tensors of the cheapest window, then all other recomputable tensors, cheapest first."""
        costs = {r.tensor_id: r.recompute_seconds / (r.idle_calls + 1) for r in resident
                 if r.recompute_seconds is not None}
        pieces = sorted((r for r in resident if r.tensor_id in costs), key=lambda r: r.offset)
        best = min(_windows(pieces, costs, pressure.nbytes), default=(0.0, 0, 0))
        order = dict.fromkeys(r.tensor_id for r in pieces[best[1]:best[2]])
        order.update(dict.fromkeys(sorted(costs, key=lambda tensor_id: (costs[tensor_id], tensor_id))))
        return [Eviction(tensor_id, Action.DROP) for tensor_id in order]


def _windows(pieces: list[Residency], costs: dict[int, float], nbytes: int) -> Iterator[tuple[float, int, int]]:
    """Yield (cost, first, end) for each tensor:
    the shortest window that starts there and frees ``nbytes``, holes included. A window is ``pieces[first:end]``;
    pieces: the tensors in the order of their addresses; costs: by tensor id."""
    for first, piece in enumerate(pieces):
        room, cost, reached = piece.free_before, 0.0, piece.offset
        for end, each in enumerate(pieces[first:], first + 1):
            if each.offset != reached:
                break  # a tensor that cannot leave lies in between
            room += each.nbytes + each.free_after
            cost += costs[each.tensor_id]
            reached = each.offset + each.nbytes + each.free_after
            if room >= nbytes:
                yield cost, first, end
                break
