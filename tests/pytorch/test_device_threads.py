"""Autograd has a thread for each device: what comes back in such a thread has its bits. Needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

ROOT = Path(__file__).resolve().parents[2]


def test_what_comes_back_in_a_thread_of_autograd_has_the_bits_that_left(tmp_path):
    support = ROOT / "tests" / "support"  # a process of its own, since a device that PyTorch knows stays known
    done = subprocess.run([sys.executable, "-W", "ignore", str(support / "torch_device_threads.py")], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(support)])}, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["keep same True False elsewhere", "swap same True False elsewhere",
                                        "mixed same True True elsewhere", "drop same True True elsewhere"]
