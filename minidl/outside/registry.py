"""What can be asked for by its name: our own things from a literal table, others from installed packages.

A package offers something through an entry point (its ``pyproject.toml``, or ``entry_points.txt`` in its metadata):

    [project.entry-points."minidl.policies"]
    largest = "my_package.largest:LargestFirst"

Its name must be none of ours. It is imported when it is asked for, and not before. Which packages there are is looked
up once in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from minidl.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The things of one kind by name. ``kind`` names one in messages; ``group`` is that of the entry points; ``ours``
    makes each of our own; ``former``: names that were given up,
    and the present ones, accepted for one version."""

    def __init__(self, kind: str, group: str, ours: Mapping[str, Callable[[], T]],
                 former: Mapping[str, str] = MappingProxyType({})) -> None:
        self.kind = kind
        self.group = group
        self._ours = ours
        self._former = former

    @cached_property
    def _offered(self) -> dict[str, list[EntryPoint]]:
        """What packages offer, by name; nothing of it is imported yet."""
        from importlib.metadata import entry_points  # takes a tenth of a second, and most programs name none

        offered: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            same = offered.setdefault(entry.name, [])
            if entry not in same:  # a package that is found on two paths is still one
                same.append(entry)
        return offered

    def names(self) -> list[str]:
        """All names: ours in the order of their table, then those of packages by the alphabet."""
        return [*self._ours, *sorted(set(self._offered) - set(self._ours))]

    def current(self, name: str) -> str:
        """The present name of what may be given by its former one."""
        return self._former.get(name, name)

    def require(self, name: str) -> None:
        """Raises UserError, with the nearest names, if there is nothing of this name, or if two offer it."""
        name = self.current(name)
        offered = self._offered.get(name, [])
        sources = [*(["minidl itself"] if name in self._ours else []), *map(_source, offered)]
        if len(sources) > 1:
            raise UserError(f"{self.kind} {name!r} is offered by {' and by '.join(sources)}: one of them has to change "
                            "its name, or go")
        if not sources:
            names = self.names()
            near = get_close_matches(name, names, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
            raise UserError(f"there is no {self.kind} {name!r}; {hint}")

    def create(self, name: str) -> T:
        """A new one of that name. Raises UserError as :meth:`require` does, or naming the package whose own cannot be
        loaded."""
        self.require(name)
        name = self.current(name)
        if name in self._ours:
            return self._ours[name]()
        entry = self._offered[name][0]
        try:
            made: T = entry.load()()
        except Exception as error:  # whatever a foreign package does while it is imported
            raise UserError(f"{self.kind} {name!r} of {_source(entry)} cannot be loaded from {entry.value!r}: "
                            f"{type(error).__name__}: {error}") from error
        return made


def _source(entry: EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else f"{entry.value!r}"
