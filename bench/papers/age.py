"""The age of a page: that of the commit that it names. It is out of date when code that it shows has changed since."""

from __future__ import annotations

import re
from pathlib import Path

from bench.papers import page
from minidl.outside.reading import is_file, read_text

MOST_BYTES = 1 << 20
CAPTURE = ("lab/functional.py", "lab/torch_capture.py", "lab/torch_programs.py")
UNSEEN = (  # by pages, which are of modelled devices, without values, and of networks of ours, if they do not say more
    *CAPTURE, "calibrate", "cli/calibrate.py", "cli/compare.py", "cli/completion.py", "cli/convert.py",
    "cli/explain.py", "cli/models.py", "cli/traced.py", "cli/train.py", "cli/view.py", "device/cpu", "device/cuda",
    "kernels/cpu", "kernels/cuda", "view")
_COMMIT = re.compile(r"^Made by `[^`]+` at commit `([0-9a-f]{7,40})(\+changes)?`", re.MULTILINE)


def shown(shows: tuple[str, ...] = ()) -> list[str]:
    """Return the paths of the code that a page shows, as arguments of git."""
    return ["minidl", "models", *(f":(exclude)minidl/{part}" for part in UNSEEN if part not in shows)]


def age(folder: str, name: str, shows: tuple[str, ...] = ()) -> str:
    """Return in words whether the file of a page is older than the code that it shows."""
    path = Path(folder) / f"{name}.md"
    if not is_file(path):
        return "not made"
    found = _COMMIT.search(read_text(path, most=MOST_BYTES))
    if found is None:
        return "names no commit"
    changed = page.git("log", "--oneline", f"{found[1]}..HEAD", "--", *shown(shows))
    if changed is None:
        return f"made at {found[1]}, which is not known here"
    count = len(changed.splitlines())
    if found[2]:
        return f"made at {found[1]} with changes of its own"
    return f"{count} commits older than the code" if count else "up to date"
