"""The four calls of the first day on a GPU, rehearsed on the CPU: each on a machine of its own, with the last one's
archive."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.gpu_check.parts import PARTS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "gpu_day.sh"
CALLS = ("1", "2", "3", "4")


def call(number, folder, *flags):
    """A call, whose ``python3`` is this one."""
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    if not (programs / "python3").exists():
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (programs / "python3").chmod(0o755)
    return subprocess.run(["sh", str(SCRIPT), number, str(folder), *flags], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])})


def test_the_four_calls_have_every_part_once():
    listed = re.findall(r'\) parts="(.*)" ;;', SCRIPT.read_text(encoding="utf-8"))
    assert sorted(name for parts in listed for name in parts.split()) == sorted(PARTS) and len(listed) == len(CALLS)


def test_the_calls_are_written_in_the_document_word_for_word():
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert re.findall(r"sh bench/gpu_day\.sh (\d)", text)[:4] == list(CALLS)


def test_a_call_without_a_number_says_how_it_is_called(tmp_path):
    wrong = call("5", tmp_path / "out")
    assert wrong.returncode == 2 and wrong.stderr.startswith("usage: sh bench/gpu_day.sh 1|2|3|4 FOLDER")


@pytest.mark.full
def test_four_calls_on_four_machines_leave_one_archive_with_every_part(tmp_path):
    before = None
    for number in CALLS:
        folder = tmp_path / number
        folder.mkdir()
        if before is not None:
            shutil.copy(before / "gpu-day.tar.gz", folder)
        ended = call(number, folder, "--device", "cpu", "--sizes", "tiny")
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
        before = folder
    with tarfile.open(before / "gpu-day.tar.gz") as archive:
        results = json.loads(archive.extractfile("day/gpu.json").read())["parts"]
    assert set(results) == set(PARTS) and not any(part["failures"] for part in results.values())
