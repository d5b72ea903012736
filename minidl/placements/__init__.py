"""Placements by name: strategies for the addresses of blocks in the arena. Each has its own file."""

from collections.abc import Callable

from minidl.outside.registry import Registry
from minidl.placements.best_fit import BestFit
from minidl.placements.bfc import Bfc
from minidl.placements.caching import Caching
from minidl.placements.first_fit import FirstFit
from minidl.placements.placement import Hole, Place, Placement
from minidl.placements.unplaced import Unplaced

PLACEMENTS: dict[str, Callable[[], Placement]] = {
    "best-fit": BestFit,
    "first-fit": FirstFit,
    "bfc": Bfc,
    "caching": Caching,
}
DEFAULT = BestFit.name

REGISTRY: Registry[Placement] = Registry("placement", "minidl.placements", PLACEMENTS)
names, create = REGISTRY.names, REGISTRY.create

__all__ = ["DEFAULT", "PLACEMENTS", "REGISTRY", "Hole", "Place", "Placement", "Unplaced", "create", "names"]
