"""Solutions of lesson 7."""

from __future__ import annotations


def least_seconds(compute_s: float, out_bytes: float, in_bytes: float, rate: float) -> float:
    """Computation and both directions of the link, side by side."""
    return max(compute_s, out_bytes / rate, in_bytes / rate)


def gap(plan_s: float, bound_s: float) -> float:
    """As if the optimum were as short as the bound."""
    return plan_s / bound_s - 1


def operands(inputs: list[str], outputs: list[str], over: dict[str, str], sizes: dict[str, int]) -> int:
    """Each input once, and those outputs that need bytes of their own."""
    return sum(sizes[tensor] for tensor in {*inputs}) + sum(sizes[tensor] for tensor in outputs if tensor not in over)


def slices(operation_bytes: int, budget: int) -> int:
    """Up to half of the budget stays whole; beyond it, a quarter is the aim."""
    if 2 * operation_bytes <= budget:
        return 1
    count = 2
    while 4 * operation_bytes > budget * count:
        count *= 2
    return count
