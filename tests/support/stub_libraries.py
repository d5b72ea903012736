"""NVIDIA's libraries without a GPU, compiled from ``stubs/*.c``: they record calls in a file."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).with_name("stubs")


def compiled(name, folder, source=None):
    """Return the library ``name``, compiled from ``stubs/<source>.c`` (default: its name). Skips without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler: the vendor's libraries cannot be stood in for")
    path, written = folder / name, SOURCES / f"{source or name.partition('.')[0]}.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(written), f"-Wl,-soname,{name}", "-ldl"],
                   check=True)
    return path


def notes(path):
    """Return the recorded calls: (call, its arguments by name) for each line."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(words[0], {key: number(value) for key, _, value in (word.partition("=") for word in words[1:])})
            for words in map(str.split, lines)]


def number(text):
    """Return a text as an int if it is one."""
    try:
        return int(text)
    except ValueError:
        return float(text)
