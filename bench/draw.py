"""Docstrings and pages drawn by lot, for a reader who does not know the code.

    python -m bench.draw --seed 1 > draw.md

The reader knows PyTorch, has ``docs/glossary.md`` and the draw, and no code. The reader says in one sentence what each
item means; someone who knows the code says if the sentence is right. ``docs/evidence/readings.md`` has the results.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/**/*.md", "README.md", "DESIGN.md", "CONTRIBUTING.md")
SHOWN = 6000  # characters of a page
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Item(NamedTuple):
    """A docstring with its place, the lines of its definition, and the docstring of the class or module around it."""

    place: str
    definition: str
    docstring: str
    around: str

    def __str__(self) -> str:
        opening = self.around.partition("\n")[0]
        return f'{self.place}\n\n{self.definition}\n\n"""{self.docstring}"""\n\n(around it: {opening or "-"})'


def docstrings(path: Path) -> Iterator[Item]:
    """The docstrings of a source: its own, and those of its classes and functions at any depth."""
    source = path.read_text(encoding="utf-8")
    lines, tree, file = source.splitlines(), ast.parse(source), path.relative_to(ROOT).as_posix()

    def within(node: ast.AST, prefix: str, around: str) -> Iterator[Item]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, Defined):
                continue
            own = ast.get_docstring(child) or ""
            if own:
                definition = "\n".join(lines[child.lineno - 1:child.body[0].lineno - 1])
                yield Item(f"{file}: {prefix}{child.name}", definition, own, around)
            yield from within(child, f"{prefix}{child.name}.", own if isinstance(child, ast.ClassDef) else around)

    module = ast.get_docstring(tree) or ""
    if module:
        yield Item(f"{file}: module", "", module, "")
    yield from within(tree, "", module)


def draw(seed: int, sources: int, pages: int) -> list[str]:
    """The items of a draw as text: ``sources`` docstrings of minidl/, without its networks, and ``pages`` pages."""
    chance = random.Random(seed)
    found = [item for path in sorted((ROOT / "minidl").rglob("*.py")) for item in docstrings(path)]
    documents = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    return [*map(str, chance.sample(found, sources)),
            *(f"page {path.relative_to(ROOT)}\n\n{path.read_text(encoding='utf-8')[:SHOWN]}"
              for path in chance.sample(documents, pages))]


def main() -> None:
    """Read the command line, and print the draw."""
    parser = argparse.ArgumentParser(description="docstrings and pages drawn by lot")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--docstrings", type=int, default=26)
    parser.add_argument("--pages", type=int, default=4)
    args = parser.parse_args()
    for number, item in enumerate(draw(args.seed, args.docstrings, args.pages), 1):
        print(f"## {number}. {item}\n")


if __name__ == "__main__":
    main()
