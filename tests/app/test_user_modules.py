"""The user's own modules are found in the current folder by the installed command, and shadow nothing."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MINIDL = Path(sysconfig.get_path("scripts")) / "minidl"
NETWORK = """
from minidl.nn import Flatten, Linear, Sequential


def build(num_classes=1000, in_channels=3):
    from beside import WIDTH  # imported while the function runs, not with its module
    return Sequential(Flatten(), Linear(in_channels * 64, WIDTH), Linear(WIDTH, num_classes))
"""
TRAIN = ["--device", "sim:p100", "--image-size", "8", "--batch", "16", "--steps", "1", "--policy", "none"]


def run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A program that has ended, in a folder."""
    return subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a network of the user's own, ``mine:build``, and a module that it imports."""
    (tmp_path / "mine.py").write_text(NETWORK)
    (tmp_path / "beside.py").write_text("WIDTH = 5\n")
    return tmp_path


def test_the_installed_command_trains_a_network_of_the_current_folder(folder):
    done = run(folder, MINIDL, "train", "--model", "mine:build", *TRAIN, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "mine:build, batch 16" in done.stdout


def test_the_laboratory_and_fit_find_a_network_of_the_current_folder(folder):
    (folder / "pixels.py").write_text(NETWORK.replace("in_channels * 64", "3 * 224 * 224"))
    for words in (["lab", "trace", "info", "pixels:build:2"], ["fit", "pixels:build:2", "--policies", "none",
                                                              "--steps", "2"]):
        done = run(folder, MINIDL, *words)
        assert done.returncode == 0, done.stderr
        assert "pixels:build" in done.stdout


def test_fit_finds_a_program_of_pytorch_in_the_current_folder(folder):
    pytest.importorskip("torch")
    (folder / "program.py").write_text("import torch\n\ndef make():\n    return torch.nn.Conv2d(3, 8, 224)\n")
    done = run(folder, MINIDL, "fit", "torch:program:make:2", "--policies", "none", "--steps", "2")
    assert done.returncode == 0, done.stderr


def test_the_user_s_modules_shadow_neither_the_standard_library_nor_minidl(folder):
    for name in ("wave", "minidl"):  # the first is imported by nothing before
        (folder / f"{name}.py").write_text("def build():\n    raise SystemError('shadowed')\n")
        done = run(folder, MINIDL, "train", "--model", f"{name}:build", *TRAIN)
        assert done.returncode == 2 and "AttributeError" in done.stderr
    done = run(folder, MINIDL, "train", "--model", "mine:build", *TRAIN)
    assert done.returncode == 0, done.stderr


def test_models_of_the_current_folder_come_before_those_of_a_checkout_that_train_py_is_run_from(folder):
    (folder / "mine.py").rename(folder / "models.py")
    done = run(folder, sys.executable, ROOT / "train.py", "--model", "models:build", *TRAIN)
    assert done.returncode == 0, done.stderr
    (folder / "models.py").unlink()
    done = run(folder, sys.executable, ROOT / "train.py", "--model", "models:build", *TRAIN)
    assert "module 'models' has no attribute 'build'" in done.stderr  # the checkout's is still there


def test_a_module_that_is_nowhere_is_refused_with_the_folder_that_was_looked_in(folder):
    done = run(folder, MINIDL, "train", "--model", "nowhere.at_all:build", *TRAIN)
    assert done.returncode == 2
    assert f"No module named 'nowhere' (nor is it in the current folder, {folder})" in done.stderr
    (folder / "mine.py").write_text("import nowhere\n")
    done = run(folder, MINIDL, "train", "--model", "mine:build", *TRAIN)
    assert "No module named 'nowhere' (mine" not in done.stderr and "current folder" not in done.stderr
