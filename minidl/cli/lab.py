"""``minidl lab``: the laboratory."""

from __future__ import annotations

from minidl.lab.__main__ import main

__all__ = ["main"]
