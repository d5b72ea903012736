"""One file a policy, one line in the table."""

from difflib import get_close_matches

from minidl.errors import UserError
from minidl.plan.policy import Policy
from minidl.policies.auto.policy import Auto
from minidl.policies.capuchin.policy import Capuchin, CapuchinRecompute, CapuchinSwap
from minidl.policies.dtr import Weighing
from minidl.policies.exact.policy import Exact
from minidl.policies.lru import LeastRecentlyUsed
from minidl.policies.none import NoPolicy
from minidl.policies.passive import Passive
from minidl.policies.recompute import Recompute

POLICIES: dict[str, type[Policy]] = {
    "auto": Auto,
    "capuchin": Capuchin,
    "capuchin-swap": CapuchinSwap,
    "capuchin-recompute": CapuchinRecompute,
    "dtr": Weighing,
    "exact": Exact,
    "lru": LeastRecentlyUsed,
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
