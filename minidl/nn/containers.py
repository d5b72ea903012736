"""Containers of modules: ModuleList, Sequential and ModuleDict. Objects other than modules raise WrongKind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, overload

from minidl.nn.module import Module
from minidl.tensor import Tensor


class ModuleList(Module):
    """A list of modules, named 0, 1, 2, ...; it has no forward().
    None is an empty position, as in PyTorch. Raises WrongKind for other objects."""

    def __init__(self, modules: Iterable[Module | None] = ()) -> None:
        self.extend(modules)

    def append(self, module: Module | None) -> Self:
        """Add a module at the end; returns this list. Raises WrongKind for objects other than modules and None."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module | None]) -> Self:
        """Add several modules at the end; return this list. Raises WrongKind for objects other than modules, None."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Insert a module before position ``index``. Raises WrongKind for objects other than modules and None."""
        self.check_module(str(index), module)
        entries: list[Module | None] = list(self)
        entries.insert(index, module)
        self._renumber(entries)

    def _renumber(self, modules: list[Module | None]) -> None:
        for name, _ in list(self.entries()):
            delattr(self, name)
        self.extend(modules)

    def _name(self, index: int) -> str:
        names = [name for name, _ in self.entries()]
        if not -len(names) <= index < len(names):
            raise IndexError(f"there is no module {index}: the list has {len(names)}")
        return names[index]

    def __len__(self) -> int:
        return sum(1 for _ in self.entries())

    def __iter__(self) -> Iterator[Any]:
        return (module for _, module in self.entries())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(OrderedDict(list(self.entries())[index]))
        return getattr(self, self._name(index))

    def _of(self, entries: OrderedDict[str, Module | None]) -> ModuleList:
        return ModuleList(entries.values())

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(self._name(index), module)

    def __delitem__(self, index: int) -> None:
        entries = list(self)
        del entries[index]
        self._renumber(entries)


class Sequential(ModuleList):
    """A chain of modules applied in order: ``Sequential(a, b)``, or of an OrderedDict that names them.

    A slice, ``model[1:3]``, is a Sequential of the same modules. Raises WrongKind for objects other than modules and
    None.
    """

    @overload
    def __init__(self, *modules: Module | None) -> None: ...
    @overload
    def __init__(self, named: Mapping[str, Module | None], /) -> None: ...

    def __init__(self, *modules: Any) -> None:
        first = modules[0] if modules else None
        if isinstance(first, dict):
            for name, module in first.items():
                self.add_module(name, module)
        else:
            super().__init__(modules)

    def _of(self, entries: OrderedDict[str, Module | None]) -> ModuleList:
        return Sequential(entries)

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """A dict of modules by name, which are also its attributes; it has no forward().
    Raises WrongKind for objects other than modules and None."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add or replace several modules by name. Raises WrongKind for objects other than modules and None."""
        for name, module in modules.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module | None) -> None:
        self.add_module(name, module)

    def __getitem__(self, name: str) -> Module:
        module: Module = dict(self.entries())[name]
        return module

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def pop(self, name: str) -> Module:
        """Remove the module with this name and return it. Raises KeyError if there is none."""
        module = self[name]
        delattr(self, name)
        return module

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Return the names, in the order of their first assignment."""
        return [name for name, _ in self.entries()]

    def values(self) -> list[Module | None]:
        """Return the modules, in the order of ``keys``."""
        return [module for _, module in self.entries()]

    def items(self) -> list[tuple[str, Module | None]]:
        """Return (name, module) pairs, in the order of ``keys``."""
        return list(self.entries())
