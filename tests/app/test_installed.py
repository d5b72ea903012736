"""What is installed is enough: sdist and wheel, and the command in an empty folder beside a user's own ``models``."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from minidl.view.recorded import read_page

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def run(*words: str, folder: Path, paths: tuple[Path, ...]) -> str:
    """What a program of this Python prints that sees these folders' modules first; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist of the tracked files, and a wheel made of that sdist alone."""
    folder = tmp_path_factory.mktemp("built")
    tools, source = folder / "tools", folder / "source"
    got = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(tools), "setuptools>=77"],
                         capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"setuptools cannot be had: {got.stderr.strip().splitlines()[-1]}")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    sdist = folder / run("-c", BUILD, "build_sdist", str(folder), folder=source, paths=(tools,)).splitlines()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    unpacked, = (folder / "unpacked").iterdir()
    wheel = folder / run("-c", BUILD, "build_wheel", str(folder), folder=unpacked, paths=(tools,)).splitlines()[-1]
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_has_the_networks_and_the_page_and_takes_no_other_name(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"minidl"}
    page = ROOT / "minidl" / "view"
    wanted = {f"minidl/view/{path.name}" for path in page.iterdir() if path.suffix in (".js", ".css", ".html")}
    assert len(wanted) > 4 and wanted | {"minidl/models/resnet.py", "minidl/py.typed"} <= set(names)
    assert "minidl = minidl.__main__:console" in scripts


@pytest.mark.slow
def test_an_installed_minidl_works_in_an_empty_folder_beside_models_of_a_user_s_own(built, tmp_path):
    site, folder = tmp_path / "site", tmp_path / "mine"
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(site)
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "__init__.py").write_text(
        "from minidl.models import create\ndef small(num_classes=10):\n    return create('lenet')\n")
    assert run("-m", "minidl", "--version", folder=folder, paths=(site,)).startswith("minidl ")
    assert "resnet50" in run("-m", "minidl", "models", folder=folder, paths=(site,))
    told = run("-m", "minidl", "view", "--model", "lenet", "--batch", "100", "--steps", "3", "--memory-budget", "60%",
               "--device", "sim:p100", folder=folder, paths=(site,))
    assert told.endswith("wrote memory.html\n")
    recording, = read_page(folder / "memory.html")
    assert recording["title"] == "lenet, batch 100, policy auto"
    told = run("-c", "import minidl, models; print(minidl.__file__); models.small", folder=folder, paths=(site,))
    assert told.strip() == str(site / "minidl" / "__init__.py")
