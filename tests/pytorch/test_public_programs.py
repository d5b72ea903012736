"""Programs in the style of public ones: 43 of them, with one line changed, agree with PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

ROOT = Path(__file__).resolve().parents[2]
FILES = {"images": ROOT / "tests" / "programs" / "public_images.py",
         "sequences": ROOT / "tests" / "programs" / "public_sequences.py"}
LIMIT = 2e-4  # relative: float32 over some steps of training, sums in another order


def results(path, *how, **variables):
    """The programs' results, from a process of its own: under one name there is one library."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **variables}
    runner = ROOT / "tests" / "support" / "public_run.py"
    ended = subprocess.run([sys.executable, "-W", "ignore", str(runner), str(path), *how], capture_output=True,
                           text=True, env=environment, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.split("RESULTS", 1)[1])


@pytest.mark.parametrize("name", FILES)
def test_public_programs_agree_with_pytorch_with_one_line_changed(name):
    ours, theirs = results(FILES[name], "shim"), results(FILES[name])
    assert ours.keys() == theirs.keys() and len(theirs) >= 21
    failed = {program: found for program, found in ours.items() if isinstance(found, str)}
    assert failed == {}
    for program, right in theirs.items():
        np.testing.assert_allclose(ours[program], right, rtol=LIMIT, atol=LIMIT * 1e-3, err_msg=program)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["passive", "recompute"])
@pytest.mark.parametrize("name", FILES)
def test_public_programs_have_the_same_bits_in_little_memory(name, policy):
    plain = results(FILES[name], "shim", MINIDL_POLICY="none")
    assert results(FILES[name], "shim", MINIDL_POLICY=policy, MINIDL_MEMORY="96KiB") == plain


def test_the_shim_refuses_to_take_the_place_of_pytorch_that_is_there_already():
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", "import torch, minidl.as_torch"], capture_output=True,
                           text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert ended.returncode == 1 and "PyTorch has been imported already" in ended.stderr
