"""A run folder: the command line, the numbers of every step, the closing summary, and checkpoints.

    arguments.json   the command line, so that ``--resume FOLDER`` needs no other flag; and the values that the run
                     chose (Resolved), so that the resumed run plans the same
    metrics.jsonl    one JSON object a step; metrics.csv the same as a table
    result.json, summary.txt
    checkpoints/     see ``minidl.checkpoint.store``

A run that resumes from a checkpoint writes its rows after those of the steps before it; rows of later steps, which a
killed run has written, are removed. A folder is free until a step has been done in it: a start that failed does not
occupy it. Knows no model and no device.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from minidl.checkpoint import Checkpoint, CorruptFile, Store, read_checkpoint
from minidl.cli.app.run_lock import RunLock
from minidl.errors import UserError
from minidl.outside.reading import NotJson, is_file, is_folder, is_there, parse_json, read_bytes, read_json
from minidl.outside.validation import is_whole
from minidl.outside.writing import HIDDEN, append_to_file, make_folder, replace_file

COLUMNS = ("step", "epoch", "loss", "lr", "seconds", "items_per_second", "peak_bytes", "swapped_out_bytes",
           "swapped_in_bytes", "recomputed_bytes", "data_seconds", "top1", "top5", "dice", "masked_lm_loss",
           "masked_lm_accuracy", "next_sentence_accuracy")
MOST_METRICS_BYTES = 1 << 32
ARGUMENTS, METRICS, TABLE, CHECKPOINTS = "arguments.json", "metrics.jsonl", "metrics.csv", "checkpoints"
RESULT, SUMMARY = "result.json", "summary.txt"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values that a run chose where its command line left them open: bytes of the budget and of host memory, and
    the batch; with the device as ``--device`` named it."""

    device: str
    memory_budget: int
    host_memory: int
    batch: int


class RunFolder:
    """The folder of one run. Raises UserError when the disk refuses."""

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path = path
        self.store = Store(path / CHECKPOINTS, keep=keep)

    @property
    def occupied(self) -> bool:
        """True if a run has done a step in it."""
        try:
            return (self.path / ARGUMENTS).exists() and bool(
                (self.path / METRICS).exists() and (self.path / METRICS).stat().st_size or self.store.steps())
        except OSError as error:
            raise UserError(f"cannot read the run folder {self.path}: {error.strerror or error}") from None

    def require_free(self) -> None:
        """Raises UserError if there is a run in the folder, to which only ``--resume`` may add."""
        if self.occupied:
            raise UserError(f"--run-dir {self.path}: there is a run in it already; "
                            f"--resume {shlex.quote(str(self.path))} goes on with it")

    def begin(self, arguments: Sequence[str], resolved: Resolved, lock: RunLock, *, after: int, anew: bool) -> None:
        """Hold the folder, note the command line, and be ready for the rows of the steps after that one.

        anew: there must be no run in it, not even one that came and went since this one started.
        """
        try:
            make_folder(self.path)
            lock.take()
            if anew:
                self.require_free()
            self._clean()
            noted = {"arguments": list(arguments), "resolved": asdict(resolved)}
            self._replace(ARGUMENTS, json.dumps(noted, indent=1) + "\n")
            rows = [row for row in self.rows() if row["step"] <= after]
            self._replace(METRICS, "".join(json.dumps(row) + "\n" for row in rows))
            self._replace(TABLE, table_rows(dict(zip(COLUMNS, COLUMNS, strict=True)), *rows))
        except OSError as error:
            raise self._refused(error) from None

    def add(self, row: Mapping[str, Any]) -> None:
        """One step's numbers, under COLUMNS; what is not there or not finite becomes null, and empty in the table."""
        full = {name: finite(row.get(name)) for name in COLUMNS}
        try:
            append_to_file(self.path / METRICS, f"{json.dumps(full)}\n".encode())
            append_to_file(self.path / TABLE, table_rows(full).encode())
        except OSError as error:
            raise self._refused(error) from None

    def keep(self, name: str, text: str) -> None:
        """A document of the run's end: its closing summary, or the result as JSON."""
        try:
            self._replace(name, text)
        except OSError as error:
            raise self._refused(error) from None

    def _clean(self) -> None:
        """Remove the files that a killed program has left."""
        self.store.clean()
        for name in (ARGUMENTS, METRICS, TABLE, RESULT, SUMMARY):
            (self.path / f"{HIDDEN}{name}").unlink(missing_ok=True)

    def _replace(self, name: str, text: str) -> None:
        replace_file(self.path / name, text.encode())

    def rows(self) -> list[dict[str, Any]]:
        """The rows written so far. The last line may be half of one, if the program was killed while it wrote it.
        Raises Unreadable."""
        path = self.path / METRICS
        rows = []
        for line in read_bytes(path, most=MOST_METRICS_BYTES).splitlines() if is_there(path) else ():
            try:
                row = parse_json(line)
            except NotJson:
                continue
            if type(row) is dict and is_whole(row.get("step")):
                rows.append({name: row.get(name) for name in COLUMNS})
        return rows

    def _refused(self, error: OSError) -> UserError:
        return UserError(f"cannot write the run folder {self.path}: {error.strerror or error}")

    # Going on ------------------------------------------------------------------------------------------------
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is intact, or None; prints which ones are damaged."""
        for step in reversed(self.store.steps()):
            try:
                return read_checkpoint(self.store.path(step))
            except CorruptFile as error:
                print(f"not used: {error}", flush=True)
        return None


def folder_of(resume: str) -> tuple[Path, Path | None]:
    """(run folder, checkpoint) that ``--resume PATH`` means: a run folder and no checkpoint, or one of its checkpoints.

    Raises UserError if it is neither.
    """
    path = Path(resume)
    if is_file(path / ARGUMENTS):
        return path, None
    if path.parent.name == CHECKPOINTS and is_folder(path):
        return path.parent.parent, path
    raise UserError(f"--resume {resume}: there is no run folder, and no checkpoint of one")


def read_arguments(folder: Path) -> tuple[list[str], Resolved | None]:
    """The command line with which a run was made, and what was resolved then (None: not noted). Raises UserError."""
    try:
        noted = read_json(folder / ARGUMENTS)
        arguments, resolved = noted["arguments"], noted.get("resolved")
        if type(arguments) is not list or not all(type(word) is str for word in arguments):
            raise ValueError
        if resolved is not None:
            resolved = Resolved(**resolved)
            least = {"memory_budget": 1, "host_memory": 0, "batch": 1}
            if type(resolved.device) is not str or not all(
                    is_whole(getattr(resolved, name), least=bound) for name, bound in least.items()):
                raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / ARGUMENTS}: expected an object with a list of strings, arguments, and the numbers "
                        "that were resolved") from None
    return arguments, resolved


def table_rows(*rows: Mapping[str, Any]) -> str:
    """Rows of the table."""
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
    return text.getvalue()


def finite(value: Any) -> Any:
    """The value, or None for a number that is not finite."""
    return None if isinstance(value, float) and not isfinite(value) else value
