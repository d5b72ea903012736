"""Modules by position or by name, and modules one after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, overload

from minidl.nn.module import Module
from minidl.tensor import Tensor


class ModuleList(Module):
    """Modules by position, named 0, 1, 2, ...; it has no forward() of its own."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns this list."""
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]


class Sequential(ModuleList):
    """Modules applied one after the other: ``Sequential(a, b)``, or an OrderedDict where they have names."""

    @overload
    def __init__(self, *modules: Module) -> None: ...
    @overload
    def __init__(self, named: OrderedDict[str, Module], /) -> None: ...

    def __init__(self, *modules: Any) -> None:
        first = modules[0] if modules else None
        if isinstance(first, dict):
            for name, module in first.items():
                setattr(self, name, module)
        else:
            super().__init__(modules)

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """Modules by name, which are attributes, too; it has no forward() of its own."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        for name, module in (modules or {}).items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        setattr(self, name, module)

    def __getitem__(self, name: str) -> Module:
        return dict(self.named_children())[name]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """The names, in the order of their first assignment."""
        return [name for name, _ in self.named_children()]

    def values(self) -> list[Module]:
        """The modules, in this order."""
        return list(self.children())

    def items(self) -> list[tuple[str, Module]]:
        """Names and modules, in this order."""
        return list(self.named_children())
