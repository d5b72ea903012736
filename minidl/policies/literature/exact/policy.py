"""The optimum for small traces, as a policy: a mixed-integer program keeps, swaps or drops the tensor in every gap.

It is a yardstick for the other policies. Solving takes tenths of a second for a dozen tensors and grows exponentially,
so larger traces are refused.

    execution_order   all steps that an execution may consist of
    occupancy         the memory side of the program
    formulation       the links and the time: the whole program, and the model of which it finds the optimum
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Proposal
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import KEEP, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.literature.exact.execution_order import ExecutionOrder
from minidl.policies.passive import Passive

MOST_PLACES = 1500  # most pairs of a gap and a step in it; each has two binary variables
SECONDS = 60.0      # time limit of the solver for one horizon


class Exact(OnDemand):
    """The fastest plan in the model, found by mixed-integer programming; an error says why if it is not found.

    seconds  the solver's time limit for one horizon; an optimum that is not proven by then is refused.
    """

    name = "exact"
    plans = True

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return the victims that the policy ``passive`` chooses."""
        return Passive().victims(resident, pressure)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the optimal plan; no plan if all tensors fit, or if no choice does.

        Raises UserError for a trace with more than 1,500 pairs of a gap and a step in it, or if the time is up before
        the optimum is proven.
        """
        from minidl.policies.literature.exact.formulation import best  # SciPy: loaded when the first plan is made

        facts = problem(trace, costs, lasting=False)
        mode = np.full(len(facts.gap_call), KEEP, np.int64)
        room = Room(limits.device_bytes, limits.host_bytes, 0.0)
        if simulate(facts, room, mode, mode.copy(), NO_NOTES).excess == 0:
            return NO_PLAN
        order = ExecutionOrder.of(facts)
        if order.size > MOST_PLACES:
            raise UserError(f"policy 'exact' is for small traces: {len(trace.tensors)} tensors with {len(mode)} gaps "
                            f"in {len(trace.calls)} calls are {order.size} places to decide on, more than "
                            f"{MOST_PLACES}; use 'auto'")
        found = best(order, limits.device_bytes, seconds=self.seconds)
        if not found.proven:
            raise UserError(f"policy 'exact' has not proven an optimum within {self.seconds:g} s: the best iteration "
                            f"found takes {found.seconds:.4g} s, none takes less than {found.bound:.4g} s; use 'auto'")
        if found.mode is None:
            return NO_PLAN
        return Proposal(replace(to_plan(trace, facts, found.mode, found.prefetch_at), predicted_seconds=found.seconds))
