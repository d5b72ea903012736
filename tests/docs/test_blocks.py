"""What stands in the documents as code does what it says: Python is executed, commands are carried out or, where that
takes long, parsed: the program is there, and so are its flags. A comment before a block says which: runs, or parsed.

Blocks of Python that print have their output beside them. ``test_semantics_page`` tries `docs/semantics.md` and
`docs/from_pytorch.md`.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from minidl.__main__ import COMMANDS
from minidl.__main__ import main as minidl

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md"),
                *(ROOT / "docs" / "evidence").glob("*.md"), ROOT / "course" / "README.md"])
ELSEWHERE = {"semantics.md", "from_pytorch.md"}  # whose Python is executed by another test
BLOCK = re.compile(r"(?:<!-- (\w+) -->\n\n)?"
                   r"(?:^```(\w+)\n([\s\S]*?)^```$|(?:(?<=\n\n)|\A)((?: {4}.*\n|\n(?= {4}))+))", re.MULTILINE)
PROGRAMS = ("pip", "python", "pytest", "ruff", "mypy", "minidl", "marimo", "mkdocs")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
PRINTS = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
PATIENCE_S = 600
COMPILING_S = 3600  # 33 kernels are 75 s of processor time where none is compiled yet, on a busy machine far more


class Block(NamedTuple):
    """A block of code: ``marker`` is "runs", "parsed" or ""; ``language`` is "" of an indented one."""

    marker: str
    language: str
    text: str


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """All blocks of a page, in order."""
    return blocks_of(page.read_text(encoding="utf-8"))


def blocks_of(text: str) -> tuple[Block, ...]:
    """All blocks of a text, in order."""
    return tuple(Block(marker, language, fenced or re.sub(r"^ {4}", "", indented, flags=re.MULTILINE))
                 for marker, language, fenced, indented in (match.groups("") for match in BLOCK.finditer(text)))


def commands(block: Block) -> list[list[str]]:
    """The command lines of a block, as words; none where it is no block of commands."""
    if block.language not in ("", "sh", "console"):
        return []
    text = block.text.replace("\\\n", " ")
    lines = [re.sub(r"\s#.*", "", line).strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0].split()[0] not in PROGRAMS:
        return []
    return [part for line in lines for part in _parts(shlex.split(line))]


def _parts(words: list[str]) -> list[list[str]]:
    """What stands between `&&` and `;`."""
    found: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", ";") or word.endswith(";"):
            found[-1] += [word[:-1]] if word.endswith(";") and len(word) > 1 else []
            found.append([])
        else:
            found[-1].append(word)
    return [part for part in found if part]


@cache
def help_of(words: tuple[str, ...]) -> str:
    """What a command of minidl says of its flags."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        minidl([*words, "--help"])
    return told.getvalue()


def known(words: list[str]) -> str:
    """A text that has all flags of a command line's program. Raises AssertionError where there is no such program."""
    if words[:2] == ["python", "-m"]:
        module, rest = words[2], words[3:]
        if module.startswith("minidl.") or module == "minidl":
            inside = {"minidl.lab": "lab", "minidl.calibrate": "calibrate", "minidl.report.compare": "compare"}
            if module in inside:
                return known(["minidl", inside[module], *rest])
        path = ROOT.joinpath(*module.split("."))
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert file.is_file(), f"there is no module {module}"
        return file.read_text(encoding="utf-8")
    if words[0] == "python":
        if words[1] == "train.py":
            return help_of(("train",))
        assert (ROOT / words[1]).is_file(), f"there is no program {words[1]}"
        return (ROOT / words[1]).read_text(encoding="utf-8")
    if words[0] == "minidl":
        plain = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
        if plain:
            assert plain[0] in COMMANDS, f"minidl has no command {plain[0]}"
            deeper = {"lab": {"trace": 3, "run": 2, "fit": 2, "placement": 2, "paper": 2}}.get(plain[0], {})
            told = help_of(tuple(plain[:deeper.get(plain[1], 1) if len(plain) > 1 else 1]))
            return told + help_of(("train",)) if plain[0] in ("view", "explain") else told  # the flags of train, too
    return " ".join(words)  # not of this project


def wrong(words: list[str]) -> list[str]:
    """The flags of a command line that its program does not have."""
    there = known(words)
    return [flag for flag in FLAG.findall(" ".join(words)) if not re.search(rf"{flag}(?![\w-])", there)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_document_is_one_and_says_whether_it_is_carried_out(page):
    for block in blocks(page):
        lines = commands(block)
        assert not lines or block.marker in ("runs", "parsed"), f"which of both is this?\n{block.text}"
        for words in lines:
            assert wrong(words) == [], f"{page.name}: {' '.join(words)}"


def test_a_flag_or_a_program_that_is_not_there_is_seen():
    text = "<!-- parsed -->\n\n    minidl train --modell vgg16 --steps 3  # so\n    python bench/none.py\n\nMore."
    found = blocks_of(text)
    assert [block.marker for block in found] == ["parsed"]
    first, second = commands(found[0])
    assert wrong(first) == ["--modell"]
    with pytest.raises(AssertionError, match="no program bench/none.py"):
        wrong(second)
    with pytest.raises(AssertionError, match="no command trane"):
        wrong(["minidl", "trane", "--steps", "3"])
    assert wrong(["minidl", "lab", "trace", "replay", "x", "--policy", "lru", "--budgets", "3"]) == ["--budgets"]
    assert commands(Block("", "", "minidl/\n  meta\n")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_python_is_python(page):
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)


def agrees(line: str, said: str) -> bool:
    """Whether a line is as a comment has it, with ... for anything."""
    return re.fullmatch(".*".join(map(re.escape, said.split("..."))), line) is not None


def executed(program: str, folder: Path, *, patience_s: float = PATIENCE_S) -> str:
    """What a program prints, which must end well."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False,
                           cwd=folder, timeout=patience_s, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.slow
def test_the_python_of_every_other_page_runs_and_prints_what_stands_beside_it(tmp_path):
    """All pages in one process, each with names of its own. README's training is simulated: below it is carried out."""
    pages = {page: [block.text.replace('device="cpu"', 'device="sim:p100"') if page.name == "README.md" else block.text
                    for block in blocks(page) if block.language == "python" and block.marker != "parsed"]
             for page in PAGES if page.name not in ELSEWHERE}
    pages = {page: texts for page, texts in pages.items() if texts}
    assert len(pages) >= 7
    program = "".join(f"exec(compile({chr(10).join(texts)!r}, {page.name!r}, 'exec'), {{}})\nprint('----')\n"
                      for page, texts in pages.items())
    printed = [part.strip().splitlines() for part in executed(program, tmp_path).split("----\n")[:-1]]
    for (page, texts), lines in zip(pages.items(), printed, strict=True):
        said = PRINTS.findall("\n".join(texts))
        assert said or page.parent.name != "guides", f"{page.name} says of nothing what it prints"
        for expected in said:
            assert any(agrees(line, expected) for line in lines), f"{page.name}: {expected} is none of {lines}"


@pytest.mark.full
def test_the_training_of_the_readme_runs_on_the_cpu(tmp_path):
    program, *_ = (block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    told = executed(program, tmp_path, patience_s=COMPILING_S)
    losses = [float(line.split()[0]) for line in told.splitlines()]
    assert len(losses) == 3 and all(1 < loss < 5 for loss in losses)  # ln 10 = 2.3 is a guess


@pytest.mark.slow
def test_every_command_that_is_to_run_runs(tmp_path):
    lines = [words for page in PAGES for block in blocks(page) if block.marker == "runs" for words in commands(block)]
    assert len(lines) >= 3 and all(words[0] == "minidl" for words in lines)
    executed("from minidl.__main__ import main\n" + "".join(f"assert main({words[1:]!r}) == 0\n" for words in lines),
             tmp_path)
