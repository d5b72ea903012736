"""The base of systems that plan once, from the network alone, and refuse a step that their plan does not cover.

The network is known only after it has run, so memory is paged on demand (as ``passive``) until then. From then on the
plan is followed unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minidl.errors import Unsuitable
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import TensorId, Trace
from minidl.planning.expansion import expand
from minidl.planning.modes import modes_of, waiting
from minidl.planning.schedule import NO_NOTES, Outcome
from minidl.planning.timing import Room
from minidl.planning.walk import FAILED
from minidl.policies.literature.network import Network
from minidl.policies.passive import Passive

NEVER = 1 << 60  # bytes that a plan needs which cannot be carried out


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
            needed = peak_bytes(network, plan)
            where = (f"{format_bytes(limits.device_bytes)}: under its plan an iteration needs {format_bytes(needed)}"
                     if needed > limits.device_bytes else f"{format_bytes(limits.host_bytes)} of host memory")
            raise Unsuitable(f"policy {self.name!r} cannot run this in {where}")
        # The model lays swap-ins itself, as late as hides them: it knows what a plan takes that leaves that open.
        return Proposal(replace(plan, predicted_seconds=None if plan.prefetches else outcome.seconds))


def outcome_of(network: Network, plan: Plan, limits: Limits) -> Outcome:
    """The modelled result of an iteration under a plan."""
    from minidl.planning.compiled import simulate  # Numba: loaded when the first plan is made

    facts = waiting(network.facts, plan, network.trace)
    mode = modes_of(plan, facts, network.trace)
    room = Room(limits.device_bytes, limits.host_bytes, 0.0)
    return simulate(facts, room, mode, np.full(len(mode), -1, np.int64), NO_NOTES)


def recomputing(network: Network, kept: frozenset[TensorId] | set[TensorId]) -> Plan:
    """Every feature map that can be made again is dropped after its last use forward, but for those that are kept."""
    return Plan({network.key(m.tensor_id, m.last): Action.DROP
                 for m in network.maps if m.can_drop and m.tensor_id not in kept})


def peak_bytes(network: Network, plan: Plan) -> int:
    """The most bytes in use at once under a plan, in the model, if nothing is brought back before it is wanted."""
    mode = modes_of(plan, network.facts, network.trace)
    steps, _, _, total = expand(network.facts, mode, np.full(len(mode), -1, np.int64), NO_NOTES)
    return int(steps.during.max()) if total.noted != FAILED else NEVER
