"""Signatures of the names that minidl and PyTorch both have, compared: names, order and defaults of arguments.

PyTorch's functions in C++ have theirs in the stubs of its wheel, with several overloads: the one that fits best counts.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import minidl
from minidl import Tensor, nn, optim
from minidl.optim import lr_scheduler

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch_names.md"
NOTHING = inspect.Parameter.empty
# Refused by name, as every argument that is not there; the page says so once.
NOWHERE = frozenset({"out", "names", "layout", "pin_memory", "generator", "size_average", "reduce", "sparse_grad",
                     "split_size_or_sections", "capturable", "differentiable", "foreach", "fused", "memory_format",
                     "device", "dtype", "_stacklevel", "is_coalesced", "requires_grad"})
PLACES: dict[str, tuple[Any, Any]] = {
    "torch": (minidl, torch), "Tensor": (Tensor, torch.Tensor), "nn": (nn, torch.nn),
    "nn.functional": (nn.functional, torch.nn.functional), "nn.init": (nn.init, torch.nn.init),
    "nn.utils": (nn.utils, torch.nn.utils), "optim": (optim, torch.optim),
    "optim.lr_scheduler": (lr_scheduler, torch.optim.lr_scheduler),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a signature: its name, its default as source text, and whether it is keyword-only."""

    name: str
    default: str | None = None
    keyword: bool = False
    several: bool = False


Arguments = tuple[Argument, ...]


def written(default: object) -> str | None:
    """Return a default value as the text that the page shows."""
    if default is NOTHING:
        return None
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    name = getattr(default, "name", None) or (default.__name__ if inspect.isfunction(default) else None)
    return str(name) if name is not None else repr(default)


def inspected(function: Callable[..., Any]) -> Arguments | None:
    """Return the arguments of a Python function without ``self``; None if Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return tuple(Argument(p.name, written(p.default), p.kind == p.KEYWORD_ONLY, p.kind == p.VAR_POSITIONAL)
                 for p in parameters if p.name not in ("self", "_") and p.kind != p.VAR_KEYWORD)


@cache
def stubs(file: str, of_class: str = "") -> dict[str, list[Arguments]]:
    """Return the overloads of each function in a stub file of PyTorch's wheel, or of each method of a class in it."""
    tree = ast.parse((Path(torch.__file__).parent / file).read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == of_class
                ) if of_class else tree.body
    found: dict[str, list[Arguments]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(_from_stub(node.args))
    return found


def _from_stub(given: ast.arguments) -> Arguments:
    def default(node: ast.expr | None) -> str | None:
        if node is None:
            return None
        try:
            return written(ast.literal_eval(node))
        except ValueError:
            return ast.unparse(node)
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + [default(node) for node in given.defaults]
    made = [Argument(a.arg, d) for a, d in zip(plain, defaults, strict=True)]
    made += [Argument(given.vararg.arg, None, False, True)] if given.vararg else []
    made += [Argument(a.arg, default(d), True) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return tuple(a for a in made if a.name != "self")


def overloads(place: str, name: str, function: Any) -> list[Arguments]:
    """Return PyTorch's signatures of a name."""
    known = inspected(function)
    if known is not None and not (known and known[0].several and len(known) == 1):
        return [known]
    for file, of_class in (("_C/_VariableFunctions.pyi", ""), ("_C/__init__.pyi", "TensorBase"),
                           ("nn/functional.pyi", "")):
        if (place == "Tensor") == bool(of_class) and name in (found := stubs(file, of_class)):
            return found[name]
    return []


def common() -> Iterator[tuple[str, str, Any, Any]]:
    """Yield each name that both libraries have: its module, the name, minidl's object and PyTorch's."""
    for place, (ours, theirs) in PLACES.items():
        for name in sorted(set(dir(ours)) & set(dir(theirs))):
            mine, other = getattr(ours, name), getattr(theirs, name)
            if name.startswith("_") or not callable(mine) or not callable(other) or inspect.ismodule(mine):
                continue
            if place == "torch" and (inspect.isclass(other) or name == "Tensor"):
                continue
            yield place, name, mine, other


def differences(mine: Arguments, right: Arguments) -> tuple[str, ...]:
    """Return how minidl's arguments differ from PyTorch's, except for those that minidl refuses everywhere."""
    found = []
    named = {a.name: a for a in mine}
    several = any(a.several for a in mine)
    order = [a for a in mine if not a.keyword]
    place = 0
    for wanted in right:
        if wanted.name in NOWHERE:
            continue
        ours = named.get(wanted.name)
        if ours is None:
            if place < len(order) and not wanted.keyword and order[place].name not in {a.name for a in right}:
                if not order[place].several:
                    found.append(f"`{wanted.name}` is `{order[place].name}`")
                place += 1
            elif not several or wanted.keyword:
                found.append(f"no `{wanted.name}`")
            continue
        if ours.default != wanted.default and not (ours.default is None and wanted.several):
            given, theirs = (a.default or "required" for a in (ours, wanted))
            found.append(f"`{wanted.name}` is {given} by default, not {theirs}")
        if ours.keyword and not wanted.keyword:
            found.append(f"`{wanted.name}` by name alone")
        elif not ours.keyword:
            place = order.index(ours) + 1
    return tuple(found)


def rows() -> list[tuple[str, str]]:
    """Return each name whose arguments differ, and the differences as text."""
    made = []
    for place, name, mine, other in common():
        ours, known = inspected(mine), overloads(place, name, other)
        if place == "Tensor" and ours:
            ours = ours[1:]  # the tensor itself
        if ours is None or not known:
            continue
        best = min((differences(ours, right) for right in known), key=len)
        if best:
            made.append((f"{place}.{name}", "; ".join(best)))
    return made


TEXT = """# Arguments that differ from PyTorch's

The names that minidl and PyTorch both have, where arguments have another name, order or default, or are not there.
`python -m bench.torch_names` writes this page from the signatures of both, and a test compares the page with them.

* "`a` is `b`": PyTorch's argument `a` is called `b` in minidl.
* "`a` is X by default, not Y": the default is X in minidl and Y in PyTorch; *required* means that there is none.
* "`a` by name alone": minidl takes `a` as a keyword only, PyTorch also by its place.
* "no `a`": minidl has no such argument, and a call that passes `a` by name ends in an error that says so.

The table leaves out arguments about which minidl does the same in all functions: `out`, `names`, `layout`,
`pin_memory`, `generator`, `size_average`, `reduce`, `device`, `dtype`, `memory_format`, `foreach`, `fused`.

| name | what differs in minidl |
|---|---|
"""


def page() -> str:
    """Return the page of all differences."""
    return TEXT + "".join(f"| `{name}` | {words} |\n" for name, words in rows())
