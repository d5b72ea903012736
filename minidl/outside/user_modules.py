"""Import of the user's modules that a command line names: ``package.module:function``.

A console script does not search the current folder for modules, but ``python -m`` does. Here every command that names
such a module does: it appends the current folder to ``sys.path``, so that imports inside the user's functions work.
The standard library, minidl and installed packages come before it, but under ``python -m``, where it stays first. Only
the folder of a minidl checkout (with ``models/`` and ``bench/``) comes after it, although train.py puts that first.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from minidl.errors import UserError

HOME = Path(__file__).resolve().parents[2]  # the folder that contains the package minidl


def user_module(name: str) -> ModuleType:
    """Import the user's module with this name, such as ``package.module``, and return the module.
    Raises ModuleNotFoundError, with the current folder, if neither that folder nor ``sys.path`` has the module, and any
    error that the module raises."""
    folder = _search_current_folder()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or name != error.name and not name.startswith(f"{error.name}."):
            raise  # the missing module is one that the user's module imports
        raise ModuleNotFoundError(f"{error.msg} (nor is it in the current folder, {folder})", name=error.name) from None


def module_file(name: str) -> Path | None:
    """Return the file of the module in a name such as ``package.module:function``, which is not imported.
    None for a name without a colon, and if the module has no file or is not found."""
    module_name, colon, _ = name.partition(":")
    if not colon:
        return None
    _search_current_folder()
    try:
        found = find_spec(module_name)
    except Exception:  # the packages around a module are imported, and may raise anything
        return None
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


def user_function(name: str, role: str) -> Callable[..., Any]:
    """Return the user's function with this name, such as ``package.module:function``.
    role: the purpose of the function, for messages. Raises UserError if it cannot be imported, or is no function."""
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UserError(f"{name} is no {role}: package.module:function names one")
    try:
        function = getattr(user_module(module_name), function_name)
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # importing a foreign module may raise anything
        raise UserError(f"cannot load the {role} {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise UserError(f"cannot load the {role} {name}: {function_name} cannot be called")
    found: Callable[..., Any] = function
    return found


def _search_current_folder() -> Path:
    """Let imports search the current folder, after all others but that of a checkout of minidl; return the folder."""
    folder = Path.cwd()
    _put_last(folder)
    if folder.resolve() != HOME and (HOME / "pyproject.toml").is_file() and str(HOME) in sys.path:  # a checkout
        _put_last(HOME, again=True)
    return folder


def _put_last(folder: Path, *, again: bool = False) -> None:
    """Append a folder to ``sys.path``; ``again`` moves a folder that is already there to the end."""
    path = str(folder)
    if again:
        sys.path[:] = [each for each in sys.path if each != path]
    if path not in sys.path:
        sys.path.append(path)
