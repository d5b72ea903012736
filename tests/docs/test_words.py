"""Pages and sources are without some habits of speech that hide a sentence's subject, or make an object a person.

Sources still have some. ``ALLOWED`` says how many each room may have; a number may only go down.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "course" / "README.md",
                *(ROOT / "docs").glob("*.md"),
                *(ROOT / "docs" / "guides").glob("*.md"), *(ROOT / "docs" / "evidence").glob("*.md")])
OPENING = re.compile(r"(What|Whether|Whoever)\b")
WORDS = re.compile(r"\b(whoever|nobody|somebody)\b|\bas (it comes|they come)\b", re.IGNORECASE)
ALLOWED: dict[str, int] = {
    "course": 23,
    "minidl": 0,
    "minidl/memory": 0,
    "minidl/parts": 0,
}


# Openings that refer to what the reader has not met, or that begin in the middle of a sentence.
VAGUE = re.compile(r"(Likewise|As above|So that|The same|Those of|That of|As of|As ``|Of (a|an|the|all|what)|Here\b)")
VAGUELY_ALLOWED: dict[str, int] = {
    "bench": 0,
    "minidl/nn": 4,
    "minidl/runtime": 0,
    "minidl/torch": 0,
    "models": 0,
}


def room(path: Path) -> str:
    """``minidl/device`` for every file below it, ``minidl`` for a file of minidl/ itself, ``bench`` below bench/."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "minidl" and len(parts) > 2 else parts[0]


@cache
def sources() -> dict[str, tuple[Path, ...]]:
    """The sources of each room; ``minidl/models`` is a link to ``models``."""
    found: dict[str, list[Path]] = {}
    for top in ("minidl", "models", "bench", "course", "examples"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not path.is_relative_to(ROOT / "minidl" / "models"):
                found.setdefault(room(path), []).append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def habits(source: str) -> Iterator[str]:
    """The places of a Python source that show a habit: openings of docstrings; words in strings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").strip()
            if OPENING.match(text):
                yield text.splitlines()[0]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield from (f"{token.start[0]}: {found[0]}" for found in WORDS.finditer(token.string))


def vague(source: str) -> Iterator[str]:
    """First lines of docstrings that open vaguely, or whose first sentence runs on into a second line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, *others = (ast.get_docstring(node) or "").splitlines()[:2] or [""]
            runs_on = bool(others and others[0].strip()) and not first.endswith((".", ":", ")", "?"))
            if VAGUE.match(first) or runs_on:
                yield first


@pytest.mark.parametrize("path", PAGES,
                         ids=lambda page: page.name)
def test_no_page_makes_an_object_a_person(path: Path) -> None:
    assert [found[0] for found in WORDS.finditer(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", sorted(sources()))
def test_a_room_has_no_more_habits_of_speech_than_it_had(name: str) -> None:
    found = [f"{path.relative_to(ROOT)}: {habit}" for path in sources()[name]
             for habit in habits(path.read_text(encoding="utf-8"))]
    allowed = ALLOWED.get(name, 0)
    assert len(found) <= allowed, f"{name} has {len(found)} and may have {allowed}:\n" + "\n".join(found)


@pytest.mark.parametrize("name", sorted(sources()))
def test_a_room_has_no_more_docstrings_that_open_vaguely_than_it_had(name: str) -> None:
    found = [f"{path.relative_to(ROOT)}: {line}" for path in sources()[name]
             for line in vague(path.read_text(encoding="utf-8"))]
    allowed = VAGUELY_ALLOWED.get(name, 3)
    assert len(found) <= allowed, f"{name} has {len(found)} and may have {allowed}:\n" + "\n".join(found)


def test_vague_openings_are_seen_where_they_stand() -> None:
    runs_on, ends = 'def f():\n    """Return a of b,\n    and c."""\n', 'def g():\n    """Return a.\n    More."""\n'
    assert list(vague(f'"""Likewise of b."""\n{runs_on}{ends}')) == ["Likewise of b.", "Return a of b,"]


def test_each_habit_is_seen_where_it_stands() -> None:
    source = '"""What it is."""\ndef f():\n    """Whether so."""\n    # Nobody asks.\n    return "taken as it comes"\n'
    assert list(habits(source)) == ["What it is.", "Whether so.", "4: Nobody", "5: as it comes"]
    assert list(habits('"""It says what it is."""\nwhat = somebody = 1\n')) == []
