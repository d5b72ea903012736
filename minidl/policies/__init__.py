"""The memory policies by name. A policy decides which tensors leave the device, when, and whether by swap-out or drop.
"""

from collections.abc import Callable

from minidl.outside.registry import Registry
from minidl.plan.policy import Policy, required
from minidl.policies.auto.policy import Auto
from minidl.policies.capuchin.policy import Capuchin, CapuchinListing, CapuchinRecompute, CapuchinSwap
from minidl.policies.dtr_swap import DtrSwap
from minidl.policies.literature import SYSTEMS
from minidl.policies.lru import LeastRecentlyUsed
from minidl.policies.none import NoPolicy
from minidl.policies.passive import Passive
from minidl.policies.recompute import Recompute

POLICIES: dict[str, Callable[[], Policy]] = {
    "auto": Auto,
    "capuchin": Capuchin,
    "capuchin-swap": CapuchinSwap,
    "capuchin-recompute": CapuchinRecompute,
    "capuchin-listing": CapuchinListing,
    "dtr-swap": DtrSwap,
    "lru": LeastRecentlyUsed,
    "none": NoPolicy,
    "passive": Passive,
    "recompute": Recompute,
    **SYSTEMS,
}

# The policies that --help lists; docs/policies.md describes these and all others.
CHOICES = ("auto", "capuchin", "capuchin-swap", "capuchin-recompute", "passive", "lru", "recompute", "dtr-swap", "dtr",
           "vdnn-dyn", "checkmate", "none")
REGISTRY: Registry[Policy] = Registry("policy", "minidl.policies", POLICIES, former={"str": "str-ilp"})
names = REGISTRY.names


def create(policy: str | Policy) -> Policy:
    """Return the policy of a name, or the policy that is given instead of one.
    Raises UserError for an unknown name, one that cannot be made, and for what is no policy."""
    return required(REGISTRY.create(policy) if isinstance(policy, str) else policy)


def hurried(name: str) -> Policy:
    """Return the policy of this name, for a run that takes its first plan only: ``auto`` makes one short search for it.
    Raises UserError for an unknown name."""
    return Auto(rounds=0) if name == Auto.name else create(name)


def choices() -> list[str]:
    """Return the names that ``--help`` lists: those in CHOICES, and the policies that installed packages provide."""
    return [*CHOICES, *(name for name in names() if name not in POLICIES)]
