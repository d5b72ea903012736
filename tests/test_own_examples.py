"""The examples of a policy and a placement of one's own: each is one small class, and what it prints compares it."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from minidl.meta import ALIGNMENT
from minidl.plan.policy import Pressure, Residency

ROOT = Path(__file__).resolve().parent.parent


def printed(name: str, folder: Path) -> dict[str, str]:
    """What an example prints, by the first word of each line."""
    ended = subprocess.run([sys.executable, "-W", "error", ROOT / "examples" / f"{name}.py"], capture_output=True,
                           text=True, check=False, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (ended.returncode, ended.stderr) == (0, "")
    return dict(line.split(maxsplit=1) for line in ended.stdout.splitlines())


def test_a_policy_of_ones_own_is_compared_with_passive_and_decides_differently(tmp_path):
    lines = printed("own_policy", tmp_path)
    assert list(lines) == ["passive", "own-lru"]
    seconds = {name: float(re.match(r"([\d.]+) s a step", text)[1]) for name, text in lines.items()}
    assert seconds["passive"] != seconds["own-lru"] and all(1.5 < value < 4 for value in seconds.values())
    assert all(re.search(r"[1-9][\d.]* GiB swapped out$", text) for text in lines.values())


def test_a_placement_of_ones_own_is_compared_with_all_of_ours(tmp_path):
    lines = printed("own_placement", tmp_path)
    assert list(lines) == ["best-fit", "first-fit", "bfc", "caching", "next-fit"]
    assert len(set(lines.values())) == 5
    for name, text in lines.items():
        assert (" 0 B moved " in text) == (name in ("bfc", "caching")), text


def test_the_guides_name_all_that_a_policy_and_a_placement_of_ones_own_see():
    guides = ROOT / "docs" / "guides"
    named = set(re.findall(r"`(\w+)`", (guides / "policy.md").read_text(encoding="utf-8")))
    assert {*Residency._fields, *(field.name for field in fields(Pressure))} - named == set()
    words = " ".join((guides / "placement.md").read_text(encoding="utf-8").split())
    assert f"multiples of the alignment, {ALIGNMENT} bytes" in words


@pytest.mark.parametrize("name", ["own_policy", "own_placement"])
def test_what_is_ones_own_is_a_class_of_at_most_twenty_lines(name):
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    body = re.search(r"\nclass .*?\n\n\n", source, re.DOTALL)[0]
    assert len(body.strip().splitlines()) <= 20
