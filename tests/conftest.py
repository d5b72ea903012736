"""How the suite is divided: over at most four processes, and by ``@pytest.mark.default(dtype=["float32"])``.

The cells of a parametrised test whose parameters are among those named run by default; the others are marked ``slow``.
Parameters that are not named may have any value. What several folders share by name is here too.
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import numba
import pytest

from minidl.outside.stages import EVERY_VARIABLE
from minidl.policies.beside import VARIABLE as BESIDE_VARIABLE

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; tests interrupt what waits
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ[EVERY_VARIABLE] = "0"  # what commands print depends on no clock, unless a test asks for it
os.environ[BESIDE_VARIABLE] = "0"  # nor does a test start another process, unless it asks for it

PROCESSES = 4  # at most: each compiles kernels and starts threads of its own


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: a process for each processor that this one may use."""
    return min(PROCESSES, len(os.sched_getaffinity(0)))


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what ``default`` does not name; what is ``full`` or needs a GPU stays that."""
    for item in items:
        wanted: dict[str, Any] = {name: values for mark in item.iter_markers("default")
                                  for name, values in mark.kwargs.items()}
        if wanted:
            given = item.callspec.params  # type: ignore[attr-defined]
            chosen = all(str(given[name]) in map(str, values) for name, values in wanted.items())
            if not chosen and not any(item.get_closest_marker(name) for name in ("full", "gpu")):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def one_thread():
    """Numba's kernels on one thread: where everything is tiny, several only wait for each other."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@pytest.fixture
def closed_folder():
    """An empty folder without any rights, in one that everybody may read."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    (root / "closed").mkdir(mode=0)
    yield root / "closed"
    for folder in root.rglob("closed"):
        folder.chmod(0o700)
    shutil.rmtree(root)
