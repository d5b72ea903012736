"""The archive for a GPU machine: parts that are small enough, and whole when they are put together."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from bench.support.bundle import MISSING, NAME, RUN, pack, wanted


def test_the_parts_together_are_the_archive_and_none_is_too_large(tmp_path):
    (tmp_path / "wheels" / "__pycache__").mkdir(parents=True)
    (tmp_path / "wheels" / "a.whl").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "wheels" / "__pycache__" / "b.pyc").write_bytes(b"left out")
    (tmp_path / "LICENSE").write_text("words")
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{NAME}.tar.99").write_bytes(b"of an older one")
    parts = pack(out, {"wheels": tmp_path / "wheels", "source/LICENSE": tmp_path / "LICENSE"},
                 RUN.format(extra="cuda13"), 10_000)
    assert sorted(out.iterdir()) == parts and len(parts) > 2
    sizes = [part.stat().st_size for part in parts]
    assert set(sizes[:-1]) == {10_000} and 0 < sizes[-1] <= 10_000
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
        assert set(archive.getnames()) == {f"{NAME}/{name}" for name in ("wheels", "wheels/a.whl", "source/LICENSE",
                                                                        "run.sh")}
        assert archive.extractfile(f"{NAME}/wheels/a.whl").read() == bytes(range(256)) * 100
        script = archive.extractfile(f"{NAME}/run.sh").read().decode()
    assert '"./source[cuda13,test]"' in script and "--no-index" in script


ROOT = Path(__file__).resolve().parents[2]


def test_the_slim_archive_wants_what_the_project_wants_of_each_package():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    lines = {*project["dependencies"], *project["optional-dependencies"]["cuda13"]}
    found = dict(zip(MISSING, wanted(text), strict=True))
    assert found["numba-cuda"].replace("numba-cuda", "numba-cuda[cu13]") in lines
    assert {found[name] for name in ("cuda-core", "nvidia-cudnn-frontend", "msgspec", "tqdm")} <= lines
    assert found["cuda-pathfinder"] == "cuda-pathfinder"  # cuda-core bounds it


@pytest.mark.full
def test_a_slim_archive_checks_a_machine_with_another_python_and_packages_of_its_own(tmp_path):
    """The machine has what is installed in an environment of Python 3.12, here without a GPU."""
    known = sorted(Path.home().glob(".pyenv/versions/3.12*/bin/python"))
    python = str(known[0]) if known else shutil.which("python3.12")
    if python is None:
        pytest.skip("there is no Python 3.12")
    machine, out = tmp_path / "machine", tmp_path / "out"
    subprocess.run([python, "-m", "venv", machine], check=True)
    installed = subprocess.run([machine / "bin" / "pip", "install", "-q", "numpy", "scipy", "numba"], check=False)
    if installed.returncode:
        pytest.skip("there is no way to a package registry")
    subprocess.run([sys.executable, "-m", "bench.gpu_bundle", "--slim", "--out", str(out)], cwd=ROOT, check=True)
    parts = sorted(out.iterdir())
    assert sum(part.stat().st_size for part in parts) < 60 << 20
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
        archive.extractall(tmp_path, filter="data")
    environment = {**os.environ, "PATH": f"{machine / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    command = ["sh", tmp_path / NAME / "run.sh", "1", tmp_path / "results", "--device", "cpu", "--sizes", "tiny"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = json.loads((tmp_path / "results" / "day" / "gpu.json").read_text())["parts"]["properties"]["found"]
    assert found["python"].startswith("3.12.") and "numba-cuda" in found["packages"]
    find = 'import importlib.util; print(importlib.util.find_spec("numba.cuda").origin)'  # CUDA's bindings are not here
    where = subprocess.run([machine / "bin" / "python", "-c", find],
                           env={**environment, "PYTHONPATH": str(tmp_path / NAME / "site")}, capture_output=True,
                           text=True, check=True).stdout
    assert f"{NAME}/site/numba_cuda/" in where
