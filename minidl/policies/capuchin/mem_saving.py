"""Computes mem_saving, an input of the paper's algorithms: the bytes that passive mode evicts in one iteration."""

from minidl.plan.policy import Residency
from minidl.plan.trace import TensorId
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.passive import in_access_order


def passive_bytes(facts: Lifetimes, budget_bytes: int) -> int:
    """Return the bytes that passive mode evicts in an iteration with this budget, oldest access first (section 5.2)."""
    away: dict[TensorId, int] = {}
    total = 0
    for k, call in enumerate(facts.trace.calls):
        operands = {*call.inputs, *call.outputs}
        for tensor_id in operands & away.keys():
            del away[tensor_id]  # an access to an evicted tensor brings it back
        need = facts.live_bytes[k] - sum(away.values()) - budget_bytes
        if need > 0:
            there = [Residency(t, n, 0, facts.uses[t][0] if facts.uses[t] and facts.uses[t][0] < k else None, None,
                               False, False, None, 0) for t, n in facts.nbytes.items()
                     if facts.live_at(t, k) and t not in operands and t not in away]
            for victim in in_access_order(there, need):
                if need <= 0:
                    break
                away[victim.tensor_id] = victim.nbytes
                need -= victim.nbytes
                total += victim.nbytes
        for tensor_id in call.frees:
            away.pop(tensor_id, None)
    return total
