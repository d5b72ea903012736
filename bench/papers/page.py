"""A page of ``docs/reproduction``: what was published beside what is found here, the command and the commit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidl.errors import UserError
from minidl.lab.drawing import is_png
from minidl.outside.writing import begins_with, make_folder, write_whole

SOLVER_S = 5.0
HEADS = (b"Made by `minidl lab ", b"Made by `python -m minidl.lab ")  # the second: of pages made before


def is_own(head: bytes) -> bool:
    """Return True if a file that begins with ``head`` is a page that this code has written."""
    return head.startswith(b"# ") and any(made in head for made in HEADS)


is_table = begins_with(b"trace,device,policy,")


@dataclass
class Content:
    """The content of a page: paragraphs and tables; pictures and data tables by the names of their files.
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
        """Add a table; its first column is aligned to the left, all others to the right."""
        lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
        lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
        self.parts.append("\n".join(lines))

    def picture(self, name: str, data: bytes | None, caption: str) -> None:
        """Add a picture with a caption; nothing if ``data`` is None."""
        if data is not None:
            self.pictures[name] = data
            self.parts.append(f"![{caption}]({name})")


    def data(self, text: str, sentence: str) -> None:
        """Add a CSV file with the page's name, and a sentence in which ``{}`` becomes the link to it."""
        file = f"{self.name}.csv"
        self.tables[file] = text
        self.parts.append(sentence.format(f"[{file}]({file})"))


@dataclass(frozen=True)
class Page:
    """One page of docs/reproduction:
    its name on the command line and as a file, its title, and the function that fills it.

    The function's argument ``quick`` asks for a version that takes seconds, as a test. shows: paths of the code that
    this page shows and most pages do not.
    """

    name: str
    title: str
    fill: Callable[[Content, bool], None]
    command: str = ""
    shows: tuple[str, ...] = ()

    def write(self, folder: str, *, quick: bool = False, force: bool = False, solver_s: float = SOLVER_S) -> str:
        """Make the page, and write its files into ``folder``; return the path of its Markdown file. Raises UserError.
        """
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


def commit() -> str:
    """Return the commit of this checkout, or ``0000000`` outside of a repository.

    ``+changes`` follows if files of minidl/ or models/ differ from the commit.
    """
    head = git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return "0000000"
    return head.strip() + ("+changes" if git("status", "--porcelain", "--", "minidl", "models") else "")


def git(*words: str) -> str | None:
    """Run git in this checkout; return its output, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parents[2], capture_output=True, text=True,
                              check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def percent(part: float) -> str:
    """Return a share as text in percent."""
    return f"{part:.1%}"


def beside(ours: float, published: float) -> str:
    """Return in percent how much our number is above or below the published one."""
    return f"{ours / published - 1:+.0%}" if published else "-"
