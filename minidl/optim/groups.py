"""Groups of an optimizer's parameters, with rates of their own."""

from collections.abc import Iterable, Mapping
from typing import Any

from minidl.errors import UserError, WrongKind
from minidl.tensor import Tensor

# Tensors, or groups of tensors with their own rates.
Parameters = Iterable[Tensor] | Iterable[Mapping[str, Any]]


def completed(params: Parameters, rates: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameter groups, completed with ``rates``; tensors, or (name, tensor) pairs, are one group.
    Raises UserError for an unknown rate."""
    if isinstance(params, Tensor):
        raise WrongKind("an optimizer takes a list of parameters, or groups of them, not one tensor: use [tensor]")
    given = list(params)
    groups = given if given and isinstance(given[0], Mapping) else [{"params": given}]
    made = []
    for group in groups:
        assert isinstance(group, Mapping)
        unknown = sorted(group.keys() - rates.keys() - {"params"})
        if unknown or "params" not in group:
            raise UserError(f"a group of parameters has params and {', '.join(rates)}, not {', '.join(unknown)}")
        members = group["params"]
        listed = [members] if isinstance(members, Tensor) else list(members)
        made.append({**rates, **group, "params": [p[1] if isinstance(p, tuple) and len(p) == 2 else p for p in listed]})
    return made


def require_at_least_zero(**numbers: float) -> None:
    """Raise UserError for a number that is below zero or NaN; the message has its argument's name."""
    for name, number in numbers.items():
        if not number >= 0:
            raise UserError(f"the optimizer's {name} must not be negative, but is {number}")
