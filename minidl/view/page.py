"""The page as one file: its template with style, program and data in it. It loads nothing, from nowhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from minidl.errors import UserError
from minidl.reading import read_text
from minidl.writing import write_whole

PROGRAM = ("data.js", "draw.js", "page.js", "start.js")
MARK = "<!-- minidl memory page -->"
OPENS, CLOSES = '<script type="application/json" id="data">', "</script>"
MOST_BYTES = 256 << 20


def page(packed: Sequence[Mapping[str, Any]]) -> str:
    """The page of one recording, or of two on one clock, each as ``packing.pack`` has it."""
    here = files(__package__)
    template = here.joinpath("page.html").read_text(encoding="utf-8")
    title = " against ".join(each["title"] for each in packed)
    parts = {"@TITLE@": html.escape(title), "@STYLE@": here.joinpath("page.css").read_text(encoding="utf-8"),
             "@PROGRAM@": "".join(here.joinpath(name).read_text(encoding="utf-8") for name in PROGRAM),
             "@DATA@": json.dumps(packed, separators=(",", ":")).replace("<", "\\u003c")}
    for place, text in parts.items():
        before, _, after = template.partition(place)
        template = before + text + after
    return template


def is_page(head: bytes) -> bool:
    """Whether a file that begins like this was made by ``page``."""
    return MARK.encode() in head


def write_page(path: str, packed: Sequence[Mapping[str, Any]], *, force: bool = False) -> None:
    """``page`` to a file, as ``minidl.writing`` has it. Raises UserError."""
    write_whole(path, page(packed).encode(), is_page, force=force)


def read_page(path: str | Path) -> list[dict[str, Any]]:
    """The recordings that a page holds. Raises UserError for what is no page."""
    text = read_text(str(path), most=MOST_BYTES)
    _, opened, rest = text.partition(OPENS)
    data, closed, _ = rest.partition(CLOSES)
    try:
        found = json.loads(data) if opened and closed and MARK in text[:4096] else None
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise UserError(f"{path} is no memory page: train.py --report writes one")
    return found
