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
           "masked_lm_accuracy", "next_sentence_accuracy", "next_token_loss")
MOST_METRICS_BYTES = 1 << 32
ARGUMENTS, METRICS, TABLE, CHECKPOINTS = "arguments.json", "metrics.jsonl", "metrics.csv", "checkpoints"
RESULT, SUMMARY = "result.json", "summary.txt"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The budget and host memory in bytes and the batch with which a run ran, given by flags or chosen by itself.
    device: the ``--device`` for which they hold."""

    device: str
    memory_budget: int
    host_memory: int
    batch: int


class RunFolder:
    """The folder ``path`` of one run, with the newest ``keep`` checkpoints of the run.
    All methods raise UserError if they cannot read or write a file of the folder."""

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path = path
        self.store = Store(path / CHECKPOINTS, keep=keep)

    @property
    def occupied(self) -> bool:
        """True if a run has done a step in this folder."""
        try:
            return (self.path / ARGUMENTS).exists() and bool(
                (self.path / METRICS).exists() and (self.path / METRICS).stat().st_size or self.store.steps())
        except OSError as error:
            raise UserError(f"cannot read the run folder {self.path}: {error.strerror or error}") from None

    def require_free(self) -> None:
        """Raise UserError if there is a run in the folder, to which only ``--resume`` may add."""
        if self.occupied:
            raise UserError(f"--run-dir {self.path}: there is a run in it already; "
                            f"--resume {shlex.quote(str(self.path))} goes on with it")

    def begin(self, arguments: Sequence[str], resolved: Resolved, lock: RunLock, *, after: int, anew: bool) -> None:
        """Lock the folder, write the command line to it, and keep its rows up to step ``after``; new rows follow them.

        anew: raise UserError if the folder holds a run, even one that started and ended since this run's first check.
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
        """Write one step's numbers, by the names in COLUMNS; missing or infinite ones are null, empty in the CSV."""
        full = {name: finite(row.get(name)) for name in COLUMNS}
        try:
            append_to_file(self.path / METRICS, f"{json.dumps(full)}\n".encode())
            append_to_file(self.path / TABLE, table_rows(full).encode())
        except OSError as error:
            raise self._refused(error) from None

    def keep(self, name: str, text: str) -> None:
        """Write a text file into the folder at the run's end, such as the closing summary."""
        try:
            self._replace(name, text)
        except OSError as error:
            raise self._refused(error) from None

    def _clean(self) -> None:
        """Remove the temporary files that a killed program has left."""
        self.store.clean()
        for name in (ARGUMENTS, METRICS, TABLE, RESULT, SUMMARY):
            (self.path / f"{HIDDEN}{name}").unlink(missing_ok=True)

    def _replace(self, name: str, text: str) -> None:
        replace_file(self.path / name, text.encode())

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows written so far. Lines that are no rows, such as half a line of a killed program, are skipped.
        Raises Unreadable if the file cannot be read."""
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
        """Return the newest intact checkpoint, or None; print the error of each damaged one that is newer."""
        for step in reversed(self.store.steps()):
            try:
                return read_checkpoint(self.store.path(step))
            except CorruptFile as error:
                print(f"not used: {error}", flush=True)
        return None


def folder_of(resume: str) -> tuple[Path, Path | None]:
    """Return what ``--resume PATH`` names: (PATH, None) for a run folder, (its run folder, PATH) for a checkpoint.

    Raises UserError if PATH is neither.
    """
    path = Path(resume)
    if is_file(path / ARGUMENTS):
        return path, None
    if path.parent.name == CHECKPOINTS and is_folder(path):
        return path.parent.parent, path
    raise UserError(f"--resume {resume}: there is no run folder, and no checkpoint of one")


def read_arguments(folder: Path) -> tuple[list[str], Resolved | None]:
    """Return a run's command line, and the values it ran with (None: unknown). Raises UserError if unreadable."""
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
    """Return rows as lines of the CSV table."""
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
    return text.getvalue()


def finite(value: Any) -> Any:
    """Return the value; None for a number that is infinite or NaN."""
    return None if isinstance(value, float) and not isfinite(value) else value
