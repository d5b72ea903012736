"""docs/semantics.md says what programs do, docs/from_pytorch.md what differs from PyTorch: each of their examples runs,
and prints the text that stands beside it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FEWEST = {"semantics.md": 10, "from_pytorch.md": 4}  # examples, beside what they begin with
PRINTS = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
PATIENCE_S = 300
BETWEEN = "----"


def examples(text):
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def printed(blocks):
    """What each block prints, after the first, all in one process. One that forks says what its child said first."""
    program = "\n".join(["import sys", blocks[0], *(f"exec({block!r}, dict(globals()))\nprint({BETWEEN!r}, flush=True)"
                                                    for block in blocks[1:])])
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False,
                           timeout=PATIENCE_S, env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "1"})
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return [part.splitlines() for part in ended.stdout.split(f"{BETWEEN}\n")[:-1]]


def agrees(line, said):
    """Whether a line is as a comment has it, with ... for anything."""
    return re.fullmatch(".*".join(map(re.escape, said.split("..."))).replace(r"\ .*\ ", " .* "), line) is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one of the examples forks")
@pytest.mark.parametrize("page", FEWEST)
def test_every_example_prints_what_stands_beside_it(page):
    blocks = examples((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(blocks) > FEWEST[page] and not PRINTS.search(blocks[0])
    for block, lines in zip(blocks[1:], printed(blocks), strict=True):
        said = PRINTS.findall(block)
        assert len(said) == len(lines) > 0 and all(map(agrees, lines, said)), f"{lines} and not {said}"


def test_a_line_that_is_not_as_its_comment_has_it_is_seen():
    assert agrees("tensor 7 (float32[2]) is gone: really", "tensor ... is gone: ...")
    assert not agrees("tensor 7 (float32[2]) is here", "tensor ... is gone: ...")
    assert agrees("[2. 2.]", "[2. 2.]") and not agrees("[2. 3.]", "[2. 2.]")
    assert examples("```python\na\n```\n```\nb\n```\n") == ["a\n"]
