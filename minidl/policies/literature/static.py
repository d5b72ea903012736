"""The base class of systems that make one plan, for a network and a size of memory, and never correct it.

The network is known only after one iteration, so until then tensors leave on demand (as in ``passive``). From then on
the plan is followed unchanged. If an iteration under the plan needs more memory than there is, the step is refused.
"""

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
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.passive import Passive

NEVER = 1 << 60  # bytes: stands for the peak of a plan that cannot be executed


class Static(Passive):
    """The base class of policies that make one plan and keep it; a subclass implements ``choose``, which makes it."""

    plans = True

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the system's plan. Raises Unsuitable for a network that the system was not made for."""
        raise NotImplementedError

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the system's plan; no plan for a trace without a backward pass.

        Raises Unsuitable if an iteration under the plan does not fit the device's or the host's memory.
        """
        network = IterationNetwork.of(trace, costs)
        if not network.maps:
            return NO_PLAN
        plan = self.choose(network, costs, limits)
        outcome = outcome_of(network, plan, limits)
        if outcome.excess > 0:
            needed = peak_bytes(network, plan)
            where = (f"{format_bytes(limits.device_bytes)}: under its plan an iteration needs {format_bytes(needed)}"
                     if needed > limits.device_bytes else f"{format_bytes(limits.host_bytes)} of host memory")
            raise Unsuitable(f"policy {self.name!r} cannot run this in {where}")
        # The model chooses the starts of swap-ins itself, so it predicts only plans that do not fix these starts.
        return Proposal(replace(plan, predicted_seconds=None if plan.prefetches else outcome.seconds))


def outcome_of(network: IterationNetwork, plan: Plan, limits: Limits) -> Outcome:
    """Return the modelled result of an iteration under a plan."""
    from minidl.planning.compiled import simulate  # Numba: loaded when the first plan is made

    facts = waiting(network.facts, plan, network.trace)
    mode = modes_of(plan, facts)
    room = Room(limits.device_bytes, limits.host_bytes, 0.0)
    return simulate(facts, room, mode, np.full(len(mode), -1, np.int64), NO_NOTES)


def recomputing(network: IterationNetwork, kept: frozenset[TensorId] | set[TensorId]) -> Plan:
    """Return the plan that drops recomputable feature maps after their last forward use, except those in ``kept``."""
    return Plan({network.key(m.tensor_id, m.last): Action.DROP
                 for m in network.maps if m.can_drop and m.tensor_id not in kept})


def peak_bytes(network: IterationNetwork, plan: Plan) -> int:
    """Return the modelled peak in bytes under a plan in which every tensor comes back only at its use.
    2^60 stands for a plan that cannot be executed."""
    mode = modes_of(plan, network.facts)
    steps, _, _, total = expand(network.facts, mode, np.full(len(mode), -1, np.int64), NO_NOTES)
    return int(steps.during.max()) if total.failed < 0 else NEVER
