"""The flag --config FILE: a YAML file of flags and values. A flag on the command line overrides the file's."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from minidl.errors import UserError
from minidl.outside.reading import read_text

FLAG = "--config"
MOST_BYTES = 1 << 20


def expanded(words: Sequence[str], refused: Collection[str]) -> list[str]:
    """Return the command line without ``--config FILE``; the file's flags come first, so later words override them.
    ``refused``: flags that a file may not contain. Raises UserError for a file that is no mapping of flags to
    values."""
    given = list(words)
    for n, word in enumerate(given):
        name, equals, path = word.partition("=")
        if name == FLAG:
            rest = given[:n] + given[n + (1 if equals else 2):]
            path = path if equals else given[n + 1] if n + 1 < len(given) else ""
            if FLAG in rest:
                raise UserError(f"{FLAG}: one file, please")
            return [*_words(path, refused), *rest]
    return given


def _words(path: str, refused: Collection[str]) -> list[str]:
    try:
        import yaml
    except ImportError:
        raise UserError(f'{FLAG} needs PyYAML, which is not installed: pip install "minidl[config]"') from None
    try:
        found = yaml.safe_load(read_text(Path(path), most=MOST_BYTES))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{FLAG} {path}: no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UserError(f"{FLAG} {path}: it must be a list of names and values, like `batch: 32`")
    words: list[str] = []
    for name, value in found.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in refused or flag == FLAG:
            raise UserError(f"{FLAG} {path}: {flag} is for the command line alone")
        words += _flag(path, flag, value)
    return words


def _flag(path: str, flag: str, value: Any) -> list[str]:
    """Return one flag and value of the file as command-line words: for True the flag alone, for False or None no words.
    Raises UserError for a list or a mapping."""
    if isinstance(value, bool) or value is None:
        return [flag] if value else []
    if not isinstance(value, str | int | float):
        raise UserError(f"{FLAG} {path}: {flag}: one value, not {type(value).__name__}")
    return [f"{flag}={value}"]
