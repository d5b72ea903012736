"""The bench of host time: its guided rows follow a plan."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_guided_row_swaps_by_its_plan():
    """A device whose own time did not go with what its operations take would have every plan look slow, and none would
    be followed: the bench itself refuses to time that."""
    arguments = ["--model", "vgg16", "--batch", "8", "--device", "cuda", "--mode", "guided", "--repeat", "1"]
    done = subprocess.run([sys.executable, "-m", "bench.host_time", *arguments], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    row = done.stdout.splitlines()[-1].split("|")
    swapped, _, recomputed = row[6].partition("/")
    assert "guided" in row[3] and float(swapped) + float(recomputed) > 0
