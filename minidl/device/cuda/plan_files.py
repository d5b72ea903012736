"""Files in which plans of cuDNN are kept: one for a GPU, its libraries' versions and a kind of plan.

A file that cannot be read, or is of another form, counts as none. A disk that is full or read-only costs time in the
next process, nothing else.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, TypeVar

from msgspec import ValidationError, convert

from minidl.device.cuda.seam import Properties
from minidl.outside.reading import Unreadable, read_json

T = TypeVar("T")


class PlanFile:
    """One such file; ``folder`` None keeps nothing."""

    def __init__(self, folder: Path | None, properties: Properties, kind: str) -> None:
        name = re.sub(r"[^\w.-]+", "-", f"{properties.name}-{properties.version}-{kind}")
        self._path = None if folder is None else folder / f"cudnn-{name}.json"

    def read(self, form: type[T]) -> T | None:
        """The contents of the file, in this form; None if there is no file."""
        if self._path is None:
            return None
        try:
            return convert(read_json(self._path), form)
        except (Unreadable, ValidationError):
            return None

    def write(self, data: Any) -> None:
        """Write the file anew, whole or not at all; two processes may both do so."""
        if self._path is None:
            return
        new = self._path.with_suffix(f".{os.getpid()}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            new.replace(self._path)
        except OSError:
            self._path = None
