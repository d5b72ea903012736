"""A policy of twenty lines against the paper's: the least recently used leaves first, weighed by what its return costs.

    python examples/weighed_lru.py

For each tensor the return is priced: the seconds to copy it back (and out, unless the host has it), or to make it
again, whichever is less. What costs least for its bytes and for the calls that it has been idle leaves first. Nothing
is planned. Speeds are shares of the speed with unlimited memory, on a simulated P100.
"""

from collections.abc import Sequence

from minidl.lab import cell
from minidl.lab.training_step import trace_of
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency


class WeighedLru(OnDemand):
    """The least recently used first, weighed by what a return costs."""

    name = "weighed-lru"
    weighs_recomputation = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """All residents, each with the cheaper of the two ways to leave."""
        ranked = []
        for tensor in resident:
            seconds = tensor.nbytes * pressure.costs.in_seconds_per_byte
            if not tensor.host_valid:
                seconds += tensor.nbytes * pressure.costs.out_seconds_per_byte
            action = Action.SWAP_OUT
            if tensor.recompute_seconds is not None and tensor.recompute_seconds < seconds:
                seconds, action = tensor.recompute_seconds, Action.DROP
            worth = seconds / (tensor.nbytes * (1 + tensor.idle_calls))
            ranked.append((worth, tensor.tensor_id, action))
        return [Eviction(tensor_id, action) for _, tensor_id, action in sorted(ranked, key=lambda entry: entry[:2])]


def speeds(network: str, batch: int, share: float) -> list[str]:
    """The share of the unmanaged speed under each policy, in this share of the memory that the network needs."""
    trace, machine = trace_of(network, batch), cell.Machine("p100")
    unmanaged, _ = cell.unmanaged(trace, machine)
    rows = [cell.run(network, trace, machine, policy, share, steps=12)
            for policy in (WeighedLru(), "lru", "capuchin")]
    return [f"{row.policy} {unmanaged / row.settled_s:.1%}" if row.settled_s else f"{row.policy} {row.status}"
            for row in rows]


if __name__ == "__main__":
    for name, batch in (("vgg16", 64), ("resnet50", 64)):
        for share in (0.8, 0.65, 0.5):
            print(f"{name} at {batch} in {share:.0%} of its memory: " + ", ".join(speeds(name, batch, share)))
