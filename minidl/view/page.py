"""Writes the page as one file: a template with style, program and data inside. The page loads no other file."""

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
    """Return the HTML page of one recording, or of several on one time axis, each as ``packing.pack`` returns it.
    Recordings of ranks are on one clock; others begin together."""
    here = files(__package__)
    template = here.joinpath("page.html").read_text(encoding="utf-8")
    ranked = len(packed) > 1 and all(each.get("rank", -1) >= 0 for each in packed)
    title = f"{packed[0]['title']}, {len(packed)} ranks" if ranked else " against ".join(e["title"] for e in packed)
    parts = {"@TITLE@": html.escape(title), "@STYLE@": here.joinpath("page.css").read_text(encoding="utf-8"),
             "@PROGRAM@": "".join(here.joinpath(name).read_text(encoding="utf-8") for name in PROGRAM),
             "@DATA@": json.dumps(packed, separators=(",", ":")).replace("<", "\\u003c")}
    for place, text in parts.items():
        before, _, after = template.partition(place)
        template = before + text + after
    return template


def is_page(head: bytes) -> bool:
    """Return True if a file with this beginning was made by ``page``."""
    return MARK.encode() in head


def write_page(path: str, packed: Sequence[Mapping[str, Any]], *, force: bool = False) -> None:
    """Write the page to a file.
    Raises UserError if that fails, or over a file that is no such page unless ``force``."""
    write_whole(path, page(packed).encode(), is_page, force=force)
