"""The user's own modules, which a command line names: ``package.module:function``.

A console script does not look for modules in the current folder, and ``python -m`` does. Here every command does: the
current folder comes last on ``sys.path`` and stays there, so that imports inside the user's functions work too. Modules
of the standard library, of minidl and of installed packages come before it. Only the folder that an uninstalled minidl
lies in (its ``models/`` and ``bench/``) comes after it: train.py puts that folder in front of all others.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parents[2]  # the folder that the package minidl lies in


def user_module(name: str) -> ModuleType:
    """The module of this name, imported if it is not yet.

    Raises ModuleNotFoundError, with the folder, if the current folder and ``sys.path`` have no such module, and
    whatever else the module raises.
    """
    folder = Path.cwd()
    _put_last(folder)
    if folder.resolve() != HOME and (HOME / "pyproject.toml").is_file() and str(HOME) in sys.path:  # a checkout
        _put_last(HOME, again=True)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or name != error.name and not name.startswith(f"{error.name}."):
            raise  # of what the module itself imports
        raise ModuleNotFoundError(f"{error.msg} (nor is it in the current folder, {folder})", name=error.name) from None


def _put_last(folder: Path, *, again: bool = False) -> None:
    """Make a folder the last that modules are looked for in. One that is there stays in its place, unless ``again``."""
    path = str(folder)
    if again:
        sys.path[:] = [each for each in sys.path if each != path]
    if path not in sys.path:
        sys.path.append(path)
