"""The real vendor over stubs of NVIDIA's libraries, compiled here: no GPU is needed, but the packages of an extra are.

``stubbed_cuda`` has the checks, and runs in a process of its own, for a driver that was loaded once stays.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stub_libraries import compiled

PROGRAMS = Path(__file__).resolve().parents[1] / "support"
CHECKS = [node.name for node in ast.parse((PROGRAMS / "stubbed_cuda.py").read_text(encoding="utf-8")).body
          if isinstance(node, ast.FunctionDef) and not node.args.args and "_" in node.name]


def installed(*modules):
    for module in modules:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            pytest.skip(f"{module} is not installed (pip install -e '.[cuda13]')")


def run(program, folder, *arguments, **environment):
    paths = os.pathsep.join([str(PROGRAMS.parents[1]), str(PROGRAMS)])
    return subprocess.run([sys.executable, str(PROGRAMS / program), *arguments], capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": paths, "STUB_LOG": str(folder / "log"),
                                            **environment})


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What ran, and what it said."""
    installed("cuda.core", "numba_cuda", "cuda.pathfinder")
    folder = tmp_path_factory.mktemp("stubs")
    for name in ("libcuda.so.1", "libcublas.so.13"):
        compiled(name, folder)
    return run("stubbed_cuda.py", folder, str(folder))


@pytest.mark.parametrize("check", CHECKS)
def test_over_stubs_of_the_libraries(checked, check):
    assert check in checked.stdout.split(), checked.stderr


def test_a_driver_that_answers_every_call_has_plans_listed_as_one_that_refuses_all(tmp_path):
    """Engines that are compiled when they are built would go on with what the stub has answered, and crash."""
    installed("cudnn", "cuda.pathfinder")
    lists = []
    for source in ("libcuda", "refusing"):
        folder = tmp_path / source
        folder.mkdir()
        compiled("libcuda.so.1", folder, source)
        found = run("stubbed_listing.py", folder, LD_LIBRARY_PATH=str(folder))
        assert found.returncode == 0, found.stderr[-2000:]
        lists.append(json.loads(found.stdout.splitlines()[-1]))
    assert lists[0] == lists[1] and all(len(plans) > 20 for plans in lists[0].values())
