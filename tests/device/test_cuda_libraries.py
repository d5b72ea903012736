"""cuBLAS and NVRTC are loaded before cuDNN. Stand-ins of NVIDIA's libraries are loaded in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stub_libraries import compiled

ROOT = Path(__file__).resolve().parents[2]
PRELOADING = """
import ctypes, sys
from types import ModuleType, SimpleNamespace

folder, missing = sys.argv[1], sys.argv[2:]

class NotFound(Exception):
    pass

def load(name):
    if name in missing:
        raise NotFound(name)
    ctypes.CDLL(f"{folder}/lib{name}.so.13")
    return SimpleNamespace(abs_path=f"{folder}/lib{name}.so.13")

sys.modules["cuda"] = ModuleType("cuda")
sys.modules["cuda.pathfinder"] = pathfinder = ModuleType("cuda.pathfinder")
pathfinder.DynamicLibNotFoundError, pathfinder.load_nvidia_dynamic_lib = NotFound, load
from minidl.device.cuda.libraries import preload
preload()
ctypes.CDLL("libnvrtc-builtins.so.13.0")  # as NVRTC does, by its bare name
print("found")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("libraries")
    for name in ("libcublasLt.so.13", "libcublas.so.13", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        compiled(name, made, "refusing")
    return made


def preloading(folder, *missing):
    return subprocess.run([sys.executable, "-c", PRELOADING, str(folder), *missing], cwd=ROOT, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def test_nvrtc_finds_its_builtins_by_their_bare_name_once_everything_is_preloaded(folder):
    assert preloading(folder).stdout == "found\n", preloading(folder).stderr


def test_without_cublas_there_is_an_error_with_the_package_and_without_nvrtc_there_is_none(folder):
    assert "cuBLAS is not installed: pip install nvidia-cublas" in preloading(folder, "cublas").stderr
    assert "libnvrtc-builtins.so.13.0: cannot open" in preloading(folder, "nvrtc").stderr  # of the test's own line
