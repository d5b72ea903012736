"""Damaged files of every kind are read or refused; and the campaign that says so sees what is neither."""

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from outside import Reader

from minidl.errors import UserError
from tests.campaigns import damaged_files

ROOT = Path(__file__).parents[2]


def run(count: int, seed: int, *, seconds: int) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.campaigns.damaged_files", "--json", f"--count={count}",
                           f"--seed={seed}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False)
    found = json.loads(done.stdout)
    assert (found["wrong"], done.returncode) == ([], 0)
    outcomes = found["readers"].values()
    assert sum(outcome.get("read", 0) for outcome in outcomes) > 0.15 * count
    assert sum(outcome.get("refused", 0) for outcome in outcomes) > 0.3 * count


def test_a_damaged_file_of_any_kind_is_read_or_refused():
    run(76, 1, seconds=300)


@pytest.mark.full
def test_some_hundred_damaged_files_are_read_or_refused():
    run(570, 2, seconds=600)


@pytest.mark.full
def test_10_000_damaged_files_are_read_or_refused():
    run(10_000, 3, seconds=7200)


def raises(error):
    def use(folder):
        raise error
    return use


def leaves(folder):
    (folder / "other").touch()
    raise UserError(f"{folder}/file is wrong")


@pytest.mark.parametrize(("use", "what"), [
    (lambda folder: None, "read"), (raises(UserError("copy/file is wrong")), "refused"),
    (raises(UserError("copy/file\nis wrong")), "2 lines"), (raises(UserError("wrong")), "no file is named"),
    (raises(KeyError("x")), "KeyError"), (raises(RecursionError()), "RecursionError"),
    (raises(AssertionError("other bits")), "other bits"), (leaves, "left behind: ['other']"),
    (lambda folder: time.sleep(9), "took more than 1 seconds"),
    (lambda folder: (folder / "file").read_text(encoding="utf-8"), "UnicodeDecodeError"),
])
def test_the_campaign_sees_whatever_is_neither_read_nor_refused(tmp_path, monkeypatch, use, what):
    monkeypatch.setattr(damaged_files, "LONGEST", 1)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "file").write_bytes(b"x")

    def replace(path: Path, choose: Random) -> str:
        path.write_bytes(b"\xff")
        return "by another"

    found = damaged_files.attempt(Reader(lambda to: None, use, damage=replace), tmp_path / "whole", tmp_path / "copy",
                                  Random(0))
    assert what in " ".join(found) and (what in ("read", "refused")) == (found[0] != "wrong")
