"""One file a policy, one line in the table."""

from difflib import get_close_matches

from minidl.errors import UserError
from minidl.memory.plan import Policy
from minidl.memory.policies.auto import Auto
from minidl.memory.policies.capuchin import Capuchin, CapuchinRecompute, CapuchinSwap
from minidl.memory.policies.exact import Exact
from minidl.memory.policies.none import NoPolicy
from minidl.memory.policies.passive import Passive
from minidl.memory.policies.recompute import Recompute
from minidl.memory.policies.weighing import Weighing

POLICIES: dict[str, type[Policy]] = {
    "auto": Auto,
    "capuchin": Capuchin,
    "capuchin-swap": CapuchinSwap,
    "capuchin-recompute": CapuchinRecompute,
    "dtr": Weighing,
    "exact": Exact,
    "none": NoPolicy,
    "passive": Passive,
    "recompute": Recompute,
}


def create(name: str) -> Policy:
    """The policy of that name. Raises UserError with the nearest names."""
    if name not in POLICIES:
        near = get_close_matches(name, POLICIES, n=3, cutoff=0.4) or sorted(POLICIES)
        raise UserError(f"unknown policy {name!r}; did you mean {', '.join(near)}?")
    return POLICIES[name]()
