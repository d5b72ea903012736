"""The page as one file: its template with style, program and data in it. It loads nothing, from nowhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from minidl.outside.writing import write_whole

PROGRAM = ("data.js", "draw.js", "page.js", "start.js")
MARK = "<!-- minidl memory page -->"
OPENS, CLOSES = '<script type="application/json" id="data">', "</script>"


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
    """True if a file that begins like this was made by ``page``."""
    return MARK.encode() in head


def write_page(path: str, packed: Sequence[Mapping[str, Any]], *, force: bool = False) -> None:
    """``page`` to a file, as ``minidl.outside.writing`` has it. Raises UserError."""
    write_whole(path, page(packed).encode(), is_page, force=force)
