"""A compiled function in its own file, which can be loaded repeatedly, as by new processes."""

import importlib.util
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

SOURCE = """from minidl.outside.numba_cache import njit

@njit()
def total(values):
    found = 0.0
    for value in values:
        found += value * 2
    return found
"""
_NUMBERS = count()


def write(folder: Path) -> None:
    """Write the file."""
    (folder / "summing.py").write_text(SOURCE)


def load(folder: Path) -> Callable[..., Any]:
    """Return the function from a fresh module: its compiled code is found on disk or compiled anew."""
    spec = importlib.util.spec_from_file_location(f"summing_{next(_NUMBERS)}", folder / "summing.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.total
