"""The policies by name: one file for each policy, one line in the table."""

from collections.abc import Callable

from minidl.outside.registry import Registry
from minidl.plan.policy import Policy
from minidl.policies.auto.policy import Auto
from minidl.policies.capuchin.policy import Capuchin, CapuchinListing, CapuchinRecompute, CapuchinSwap
from minidl.policies.dtr_swap import Weighing
from minidl.policies.literature import SYSTEMS
from minidl.policies.literature.exact.policy import Exact
from minidl.policies.literature.ilp import Checkmate, CheckmateRounded, OperatorSelection, SwapDominated
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
    "checkmate": Checkmate,
    "checkmate-lp": CheckmateRounded,
    "dtr-swap": Weighing,
    "exact": Exact,
    "lru": LeastRecentlyUsed,
    "mo-sos": OperatorSelection,
    "none": NoPolicy,
    "passive": Passive,
    "recompute": Recompute,
    "str": SwapDominated,
    **SYSTEMS,
}

REGISTRY: Registry[Policy] = Registry("policy", "minidl.policies", POLICIES)
names, create = REGISTRY.names, REGISTRY.create
