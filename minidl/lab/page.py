"""A page of ``docs/reproduction``: what was published beside what is found here, the command and the commit.

A page is as old as the commit that it names. It is out of date when code that it shows has changed since.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidl.errors import UserError
from minidl.lab.drawing import is_png
from minidl.outside.reading import is_file, read_text
from minidl.outside.writing import begins_with, make_folder, write_whole

SOLVER_S = 5.0
MOST_BYTES = 1 << 20
CAPTURE = ("lab/functional.py", "lab/torch_capture.py")
UNSEEN = (  # by pages, which are of modelled devices, without values, and of networks of ours, if they do not say more
    *CAPTURE, "calibrate", "cli/calibrate.py", "cli/compare.py", "cli/completion.py", "cli/convert.py",
    "cli/explain.py", "cli/models.py", "cli/traced.py", "cli/train.py", "cli/view.py", "device/cpu", "device/cuda",
    "kernels/cpu", "kernels/cuda", "view")
HEADS = (b"Made by `minidl lab ", b"Made by `python -m minidl.lab ")  # the second: of pages made before
_COMMIT = re.compile(r"^Made by `[^`]+` at commit `([0-9a-f]{7,40})(\+changes)?`", re.MULTILINE)


def is_own(head: bytes) -> bool:
    """Whether a file that begins like this is a page."""
    return head.startswith(b"# ") and any(made in head for made in HEADS)


is_table = begins_with(b"trace,device,policy,")


@dataclass
class Content:
    """What a page says: paragraphs and tables, and pictures and tables of data by the names of their files.
    ``solver_s``: seconds that each integer program may take; ``name``: of the page."""

    solver_s: float = SOLVER_S
    parts: list[str] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    name: str = ""

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(text)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table; the first column is to the left, numbers are to the right."""
        lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
        lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
        self.parts.append("\n".join(lines))

    def picture(self, name: str, data: bytes | None, caption: str) -> None:
        """Add a picture, where there is one."""
        if data is not None:
            self.pictures[name] = data
            self.parts.append(f"![{caption}]({name})")


    def data(self, text: str, sentence: str) -> None:
        """Add a CSV file of the page's name, and a sentence that links to it in place of ``{}``."""
        file = f"{self.name}.csv"
        self.tables[file] = text
        self.parts.append(sentence.format(f"[{file}]({file})"))


@dataclass(frozen=True)
class Page:
    """One page: its name on the command line and as a file, its title, and what fills it; ``quick`` is asked for what
    takes seconds, to see that all of it works; ``shows``: of the code that pages usually do not."""

    name: str
    title: str
    fill: Callable[[Content, bool], None]
    command: str = ""
    shows: tuple[str, ...] = ()

    def write(self, folder: str, *, quick: bool = False, force: bool = False, solver_s: float = SOLVER_S) -> str:
        """Make the page; returns its file. Raises UserError."""
        content = Content(solver_s, name=self.name)
        self.fill(content, quick)
        command = self.command or (f"paper {self.name}{' --quick' if quick else ''}"
                                   f"{f' --solver {solver_s:g}' if solver_s != SOLVER_S else ''}")
        made = f"Made by `minidl lab {command}` at commit `{commit()}`."
        text = "\n\n".join([f"# {self.title}", made, *content.parts]) + "\n"
        try:
            make_folder(Path(folder))
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror}") from None
        for name, data in content.pictures.items():
            write_whole(Path(folder) / name, data, is_png, force=force)
        for name, table in content.tables.items():
            write_whole(Path(folder) / name, table.encode(), is_table, force=force)
        path = Path(folder) / f"{self.name}.md"
        write_whole(path, text.encode(), is_own, force=force)
        return str(path)


def shown(shows: tuple[str, ...] = ()) -> list[str]:
    """The code that a page shows, as git has it."""
    return ["minidl", "models", *(f":(exclude)minidl/{part}" for part in UNSEEN if part not in shows)]


def age(folder: str, name: str, shows: tuple[str, ...] = ()) -> str:
    """Whether a page's file is as young as the code that it shows, in words."""
    path = Path(folder) / f"{name}.md"
    if not is_file(path):
        return "not made"
    found = _COMMIT.search(read_text(path, most=MOST_BYTES))
    if found is None:
        return "names no commit"
    changed = _git("log", "--oneline", f"{found[1]}..HEAD", "--", *shown(shows))
    if changed is None:
        return f"made at {found[1]}, which is not known here"
    count = len(changed.splitlines())
    if found[2]:
        return f"made at {found[1]} with changes of its own"
    return f"{count} commits older than the code" if count else "up to date"


def commit() -> str:
    """The commit of this code; ``+changes`` where what it shows differs from that, and ``0000000`` outside of a
    repository."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return "0000000"
    return head.strip() + ("+changes" if _git("status", "--porcelain", "--", "minidl", "models") else "")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parents[2], capture_output=True, text=True,
                              check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def percent(part: float) -> str:
    """A part as percents."""
    return f"{part:.1%}"


def beside(ours: float, published: float) -> str:
    """By how much ours is more or less."""
    return f"{ours / published - 1:+.0%}" if published else "-"
