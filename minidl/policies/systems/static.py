"""A system that plans once, from the network alone, and is not there to page: what its plan does not cover is refused.

Until the network has been seen, memory is paged on demand (as ``passive``), since here a network is known by running
it. From then on the plan is followed as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minidl.errors import Unsuitable
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import TensorId, Trace
from minidl.planning.modes import modes_of, waiting
from minidl.planning.schedule import NO_NOTES, Outcome
from minidl.planning.timing import Room
from minidl.policies.passive import Passive
from minidl.policies.systems.network import Network
from minidl.units import format_bytes


class Static(Passive):
    """A base for such systems: each has ``choose``."""

    plans = True

    def choose(self, network: Network, costs: Costs, limits: Limits) -> Plan:
        """The system's plan. Raises Unsuitable for a network that it was not made for."""
        raise NotImplementedError

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """The system's plan, if an iteration under it fits both memories; no plan for what has no backward pass.

        Raises Unsuitable.
        """
        network = Network.of(trace, costs)
        if not network.maps:
            return NO_PLAN
        plan = self.choose(network, costs, limits)
        outcome = outcome_of(network, plan, limits)
        if outcome.excess > 0:
            raise Unsuitable(f"policy {self.name!r} cannot run this in {format_bytes(limits.device_bytes)} (and "
                             f"{format_bytes(limits.host_bytes)} of host memory): its plan misses about "
                             f"{format_bytes(outcome.excess)}")
        return Proposal(replace(plan, predicted_seconds=outcome.seconds))


def outcome_of(network: Network, plan: Plan, limits: Limits) -> Outcome:
    """What an iteration under a plan comes to, in the model."""
    from minidl.planning.compiled import simulate  # Numba: loaded when the first plan is made

    facts = waiting(network.facts, plan, network.trace)
    mode = modes_of(plan, facts, network.trace)
    room = Room(limits.device_bytes, limits.host_bytes, 0.0)
    return simulate(facts, room, mode, np.full(len(mode), -1, np.int64), NO_NOTES)


def recomputing(network: Network, kept: frozenset[TensorId] | set[TensorId]) -> Plan:
    """Every feature map that can be made again is dropped after its last use forward, but for those that are kept."""
    return Plan({network.key(m.tensor_id, m.last): Action.DROP
                 for m in network.maps if m.can_drop and m.tensor_id not in kept})
