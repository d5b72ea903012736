"""``minidl lab paper``: remakes figures and tables of published papers.
The code is in ``bench.papers``, which only a checkout has."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import minidl
from minidl.cli.command import finish
from minidl.errors import UserError

CHECKOUT = Path(minidl.__file__).parents[1]


def module(wanted: str, name: str) -> ModuleType:
    """Return a module of ``bench.papers``. Raises UserError, which names ``wanted``, in an installed package."""
    if not (CHECKOUT / "bench" / "papers").is_dir():
        raise UserError(f"{wanted} is no part of the installed package; a checkout of minidl has it (pip install -e .)")
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    return import_module(f"bench.papers.{name}")


def main(words: Sequence[str]) -> int:
    """Run ``bench.papers.command`` with these words of a command line; return its exit code, 2 without a checkout."""
    loaded: list[ModuleType] = []

    def load() -> int:
        loaded.append(module("paper", "command"))
        return 0

    code = finish("minidl lab paper", load)
    return int(loaded[0].main(words)) if loaded else code
