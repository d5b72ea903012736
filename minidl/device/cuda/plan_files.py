"""Files that store plans of cuDNN: one for each GPU, library versions and kind of plan.

An unreadable file, or one of another format, counts as missing. A full or read-only disk costs the next process time,
nothing else.
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
    """One file of plans; with ``folder`` None it stores nothing."""

    def __init__(self, folder: Path | None, properties: Properties, kind: str) -> None:
        name = re.sub(r"[^\w.-]+", "-", f"{properties.name}-{properties.version}-{kind}")
        self._path = None if folder is None else folder / f"cudnn-{name}.json"

    def read(self, form: type[T]) -> T | None:
        """Return the contents of the file, in this type; None if there are none of this type."""
        if self._path is None:
            return None
        try:
            return convert(read_json(self._path), form)
        except (Unreadable, ValidationError):
            return None

    def write(self, data: Any) -> None:
        """Replace the file, atomically; two processes may do so at once.
        After an error of the disk, which is ignored, nothing is written any more."""
        if self._path is None:
            return
        new = self._path.with_suffix(f".{os.getpid()}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            new.replace(self._path)
        except OSError:
            self._path = None
