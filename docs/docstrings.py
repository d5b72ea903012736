"""Docstrings as pages show them: an aligned table of parameters becomes a list, and ``<name>`` stays visible.

An extension of griffe, which reads the sources for mkdocstrings. In a source a parameter is a line ``name  text`` or
``name: text``, with its continuation indented; Markdown would join such lines into one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

ITEM = re.compile(r"(?P<name>[*\w.]+(?:, [*\w.]+)*)(?: {2,}|: )(?P<text>\S.*)")
TAG = re.compile(r"<(?=[A-Za-z/])")
CODE = re.compile(r"(``[^`]+``|`[^`]+`)")


def readable(text: str) -> str:
    """The docstring in Markdown: runs of two or more parameters as a list, and no HTML outside of code."""
    return "\n\n".join(_block(block) for block in text.split("\n\n"))


def _block(block: str) -> str:
    if block.startswith("    "):
        return block  # code
    block = "".join(part if part.startswith("`") else TAG.sub("&lt;", part) for part in CODE.split(block))
    items = _items(block)
    return block if items is None else "\n".join(f"- `{name}`: {text}" for name, text in items)


def _items(block: str) -> list[tuple[str, str]] | None:
    """Name and text of each parameter of a block, or None if the block is prose."""
    items: list[tuple[str, str]] = []
    lines = block.splitlines()
    for line in lines:
        found = ITEM.fullmatch(line)
        if found is not None:
            items.append((found["name"], found["text"]))
        elif items and line.startswith("  "):
            items[-1] = (items[-1][0], f"{items[-1][1]} {line.strip()}")
        else:
            return None
    return items if len(items) > 1 else None


try:
    from griffe import Extension
except ImportError:  # the tests need ``readable`` alone
    pass
else:
    class Lists(Extension):
        """Rewrites the docstring of each object that griffe reads."""

        def on_instance(self, *, obj: Any, **_: Any) -> None:
            """Rewrite the docstring of one object."""
            if obj.docstring is not None:
                obj.docstring.value = readable(obj.docstring.value)
