"""Every public class, function and method of minidl/ says what it is."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    return sorted((ROOT / "minidl").rglob("*.py"))


def package(path: Path) -> str:
    """``minidl/device`` for everything below it, ``minidl/tensor.py`` for a file of minidl/ itself, ``models``."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "minidl" else parts[0]


def written(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    """What is defined in a body, under conditions too, and not inside functions."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from written([*node.body, *node.orelse])


def says(node: ast.ClassDef | Function) -> bool:
    return bool((ast.get_docstring(node) or "").strip())


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def inherited(name: str, node: ast.ClassDef) -> bool:
    """Whether a base of the class, or a base of that, documents a method of this name."""
    names = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return any(any(m.name == name and says(m) for m in written(base.body)) or inherited(name, base)
               for base_name in names for base in classes().get(base_name, ()) if base is not node)


def second(node: Function) -> bool:
    """A property's setter or an overload: what it says stands at another definition of the name."""
    return any(getattr(d, "attr", getattr(d, "id", "")) in ("setter", "overload") for d in node.decorator_list)


def silent(body: list[ast.stmt], of: ast.ClassDef | None = None) -> Iterator[str]:
    """The public names of a body that have no docstring."""
    for node in written(body):
        if node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            if not says(node):
                yield node.name
            yield from (f"{node.name}.{name}" for name in silent(node.body, node))
        elif not says(node) and not second(node) and not (of is not None and inherited(node.name, of)):
            yield node.name


@cache
def missing() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sources():
        for name in silent(ast.parse(path.read_text()).body):
            found.setdefault(package(path), []).append(f"{path.relative_to(ROOT)}: {name}")
    return found


def test_every_public_class_function_and_method_has_a_docstring():
    assert missing() == {}


def test_what_is_private_nested_inherited_or_set_needs_none_and_all_else_does():
    source = '''
class Base:
    """."""
    def told(self): """What it does."""
class Child(Base):
    def told(self): ...
    def new(self): ...
    @property
    def size(self): """Bytes."""
    @size.setter
    def size(self, value): ...
    def _private(self): ...
    def __len__(self): ...
class _Private:
    def method(self): ...
def bare():
    def nested(): ...
if True:
    def conditional(): ...
'''
    body = ast.parse(source).body
    found = classes()
    found["Base"] = [body[0]]
    try:
        assert list(silent(body)) == ["Child", "Child.new", "bare", "conditional"]
    finally:
        classes.cache_clear()
