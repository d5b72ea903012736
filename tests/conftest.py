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
    """Mark as slow what ``default`` does not name, and as full what ``sampled`` does not; a mark of its own stays."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ("full", "gpu")) or _chosen(item, "default"):
            continue
        item.add_marker(pytest.mark.slow if _chosen(item, "sampled") else pytest.mark.full)


def _chosen(item: pytest.Item, mark: str) -> bool:
    """True if the item is among the cells that its marks of this name list; True without such marks."""
    wanted: dict[str, Any] = {name: values for marked in item.iter_markers(mark)
                              for name, values in marked.kwargs.items()}
    given = item.callspec.params if wanted else {}  # type: ignore[attr-defined]
    return all(str(given[name]) in map(str, values) for name, values in wanted.items())


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
