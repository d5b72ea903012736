"""Registries of plug-ins by name: minidl's own from a table, others from installed packages.

A package provides a plug-in through an entry point (in its ``pyproject.toml``, or ``entry_points.txt`` in its
metadata):

    [project.entry-points."minidl.policies"]
    largest = "my_package.largest:LargestFirst"


Its name must differ from minidl's own names. The package is imported when the plug-in is first requested. Installed
packages are searched once per process. A name with a colon needs no package: ``my_module:Class`` is the class of that
name in a module of the current folder, or of any other on Python's path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from minidl.errors import UserError
from minidl.outside.user_modules import module_file, user_function

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The plug-ins of one kind, such as policies, which are created by name.

    kind    the kind's name in messages, such as "policy"
    group   the group of entry points by which packages provide plug-ins of this kind
    ours    name of a plug-in of minidl's -> function that creates the plug-in
    former  old name -> new name of a plug-in that was renamed; old names are accepted for one version
    """

    def __init__(self, kind: str, group: str, ours: Mapping[str, Callable[[], T]],
                 former: Mapping[str, str] = MappingProxyType({})) -> None:
        self.kind = kind
        self.group = group
        self._ours = ours
        self._former = former

    @cached_property
    def _offered(self) -> dict[str, list[EntryPoint]]:
        """The entry points of installed packages, by name, without importing them."""
        from importlib.metadata import entry_points  # it takes a tenth of a second, and most programs need none

        offered: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            same = offered.setdefault(entry.name, [])
            if entry not in same:  # a package found on two paths counts once
                same.append(entry)
        return offered

    def names(self) -> list[str]:
        """Return the plug-ins' names: minidl's own in the order of their table, then those of packages, sorted."""
        return [*self._ours, *sorted(set(self._offered) - set(self._ours))]

    def current(self, name: str) -> str:
        """Return the new name of a plug-in that was renamed; any other name unchanged."""
        return self._former.get(name, name)

    def require(self, name: str) -> None:
        """Raise UserError if no plug-in has this name (with the nearest names), or if two have it.
        A name with a colon is accepted: its module is imported by :meth:`create` alone."""
        if ":" in name:
            return
        name = self.current(name)
        offered = self._offered.get(name, [])
        sources = [*(["minidl itself"] if name in self._ours else []), *map(_source, offered)]
        if len(sources) > 1:
            raise UserError(f"{self.kind} {name!r} is provided by {' and by '.join(sources)}; rename or uninstall one "
                            "of them")
        if not sources:
            names = self.names()
            near = get_close_matches(name, names, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
            raise UserError(f"there is no {self.kind} {name!r}; {hint}")

    def create(self, name: str) -> T:
        """Create and return the plug-in of that name.
        Raises UserError like :meth:`require`, or if a plug-in of a package or of the user cannot be loaded or made."""
        self.require(name)
        name = self.current(name)
        if ":" in name:
            return self._own(name)
        if name in self._ours:
            return self._ours[name]()
        entry = self._offered[name][0]
        try:
            made: T = entry.load()()
        except Exception as error:  # importing a foreign package may raise anything
            raise UserError(f"{self.kind} {name!r} of {_source(entry)} cannot be loaded from {entry.value!r}: "
                            f"{type(error).__name__}: {error}") from error
        return made

    def file(self, name: str) -> Path | None:
        """Return the file with the code of a plug-in of a package or of the user; None for minidl's own."""
        offered = self._offered.get(name, []) if ":" not in name and name not in self._ours else []
        return module_file(offered[0].value if offered else name)

    def _own(self, name: str) -> T:
        """Create and return the plug-in of the user's class ``module:Class``. Raises UserError if that fails."""
        make = user_function(name, self.kind)
        try:
            made: T = make()
        except Exception as error:  # the user's class may raise anything
            raise UserError(f"{self.kind} {name} cannot be made: {type(error).__name__}: {error}") from error
        return made


def _source(entry: EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else f"{entry.value!r}"
