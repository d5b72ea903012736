"""Read the recordings in a saved page, in the form of ``packing.pack``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minidl.errors import UserError
from minidl.outside.reading import NotJson, parse_json, read_text
from minidl.view.page import CLOSES, MARK, OPENS

MOST_BYTES = 256 << 20
HEAD = 4096  # characters in which the page's mark must appear
# The keys of each recording, and the types of their values.
PARTS: dict[str, type] = {"title": str, "budget": int, "unmanaged": int, "host": int, "facts": list, "words": list,
                          "remarks": list, "subjects": dict, "calls": dict, "events": dict, "stays": dict,
                          "steps": dict, "began": float, "rank": int, "limit": int}
BEFORE = {"began": 0.0, "rank": -1}  # of pages that do not have them; their limit is their budget


def read_page(path: str | Path) -> list[dict[str, Any]]:
    """Return the recordings that a page holds. Raises UserError if the file is not a page."""
    text = read_text(Path(path), most=MOST_BYTES)
    _, opened, rest = text.partition(OPENS)
    data, closed, _ = rest.partition(CLOSES)
    try:
        found = parse_json(data) if opened and closed and MARK in text[:HEAD] else None
    except NotJson:
        found = None
    found = [BEFORE | {"limit": each.get("budget")} | each if isinstance(each, dict) else each
             for each in found] if isinstance(found, list) else []
    if not found or not all(map(_is_recording, found)):
        raise UserError(f"{path} is not a memory page: minidl view writes one")
    return found


def _is_recording(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == PARTS.keys() and all(
        type(value[name]) is kind for name, kind in PARTS.items())
