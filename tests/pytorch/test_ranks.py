"""Trainings by DDP and FSDP2 keep their bits under ``minidl.torch``, on one rank and on two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
                    reason="this PyTorch has no gloo")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_on_several_ranks_computes_the_same_on_each(ranks, tmp_path):
    at = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    running = [subprocess.Popen([sys.executable, "-W", "ignore", str(ROOT / "tests" / "support" / "torch_ranks.py"),
                                 str(rank), str(ranks), str(tmp_path / "ranks")], cwd=tmp_path, text=True,
                                env={**os.environ, "PYTHONPATH": at, "GLOO_SOCKET_IFNAME": "lo"},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(ranks)]
    for process in running:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert out.splitlines() == [
            "by_ddp swap same True False", "by_ddp drop same True True", "by_fsdp swap same True False",
            "by_fsdp drop same True True"], errors  # it drops what is not computed from a parameter directly
