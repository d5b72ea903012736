"""Compiled code that is kept on disk: found again, and compiled anew where its files were damaged."""

import pickle

import numpy as np
import pytest
import summing

from minidl.outside.stages import COMPILATION


@pytest.fixture
def load(tmp_path):
    """Load the same file again and again, as a new process would."""
    summing.write(tmp_path)

    def loaded():
        return summing.load(tmp_path)

    loaded.folder = tmp_path / "__pycache__"
    return loaded


def hits(function):
    """The sum of a few numbers, and how often compiled code was found on disk."""
    assert function(np.arange(5.0)) == 20
    return sum(function.stats.cache_hits.values())


def test_compiled_code_is_found_again(load):
    assert [hits(load()) for _ in range(2)] == [0, 1]
    index, = load.folder.glob("*.nbi")
    pickle.loads(index.read_bytes())  # behind the end of the pickle Numba does not look


def flip(data):
    middle = len(data) // 2  # of the machine code
    return data[:middle] + bytes(255 - byte for byte in data[middle:middle + 64]) + data[middle + 64:]


@pytest.mark.parametrize(("pattern", "damage"), [
    ("*.nbc", flip), ("*.nbc", lambda data: data[:-32]), ("*.nbi", flip), ("*.nbi", lambda data: b"")])
def test_damaged_code_is_compiled_anew_and_kept(load, pattern, damage):
    hits(load())
    path, = load.folder.glob(pattern)
    path.write_bytes(damage(path.read_bytes()))
    assert [hits(load()) for _ in range(2)] == [0, 1]


def test_code_that_cannot_be_kept_runs_all_the_same(load):
    hits(load())
    path, = load.folder.glob("*.nbi")
    path.unlink()
    path.mkdir()
    assert [hits(load()) for _ in range(2)] == [0, 0]


def test_what_is_compiled_is_counted_and_what_is_found_on_disk_is_not(load):
    before = COMPILATION.count
    for _ in range(2):
        hits(load())
        assert COMPILATION.count == before + 1 and not COMPILATION.going
    load()(np.zeros(3, np.float32))  # another type
    assert COMPILATION.count == before + 2
