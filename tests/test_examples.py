"""Every file in examples/ runs as it is, in a folder of its own and without a warning, and ends in time."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ELSEWHERE = {"own_policy", "own_placement"}  # run by test_own_examples, which looks at what they print
MOST_SECONDS = 300  # most of it compiling kernels, where no earlier run has left them


@cache
def output(path: Path) -> str:
    """What an example prints; it must end well, within the limit, and complain of nothing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=False,
                           timeout=MOST_SECONDS, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_there_are_examples():
    assert "training_loop" in {path.stem for path in EXAMPLES}


@pytest.mark.slow  # a training that shows learning takes its time
@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem not in ELSEWHERE], ids=lambda path: path.stem)
def test_an_example_runs_and_shows_what_it_did(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output(path).strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_first_what_it_shows_and_how_it_is_run(path):
    says = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"python examples/{path.name}" in says


@pytest.mark.slow
def test_the_training_loop_is_short_and_learns_in_half_of_the_memory_by_swapping():
    path = ROOT / "examples" / "training_loop.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    printed = output(path)
    needed, given = map(float, re.findall(r"([\d.]+) MiB", printed.splitlines()[0]))
    assert given == pytest.approx(needed / 2, abs=0.1)  # as they are shown
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+),", printed)]
    assert len(losses) == 30 and losses[0] > 1.3 and max(losses[-5:]) < 0.3  # ln 4 = 1.39 is a guess among four
    peaks = [float(peak) for peak in re.findall(r"peak ([\d.]+) MiB", printed)]
    assert len(peaks) == 30 and max(peaks) <= given
    assert all(float(out) > 0 for out in re.findall(r"swapped out ([\d.]+) MiB", printed)[-5:])
