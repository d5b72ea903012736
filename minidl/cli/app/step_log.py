"""Writes the numbers of each step, as soon as it ends, to files and to the user's logger.

The files are a table (--csv) and TensorBoard's (--tensorboard); the logger is a function (--logger).

The CSV file has the columns of the run folder's table. A resumed run keeps the rows of the earlier steps.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minidl.cli.app.options import Options
from minidl.cli.app.run_folder import COLUMNS, MOST_METRICS_BYTES, finite, table_rows
from minidl.errors import UserError
from minidl.outside.reading import is_there, read_text
from minidl.outside.user_modules import user_function
from minidl.outside.validation import is_whole
from minidl.outside.writing import append_to_file, begins_with, write_whole

HEADER = table_rows(dict(zip(COLUMNS, COLUMNS, strict=True)))
is_table = begins_with(HEADER.encode())


class StepLog:
    """The writer of each step's numbers to a CSV file, TensorBoard files and a function, as far as flags ask for them.

    Call ``begin`` before the first step, ``add`` after each, ``close`` after the last. Raises UserError if tensorboardX
    is needed and not installed, or if the function cannot be imported.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._board: Any = None
        if options.tensorboard is not None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                raise UserError('--tensorboard takes tensorboardX: pip install "minidl[tensorboard]"') from None
            self._open = SummaryWriter
        self._logger = None if options.logger is None else user_function(options.logger, "logger")

    def begin(self, done: int) -> None:
        """Create the files. done: the number of steps of the run that this one resumes; an existing CSV file keeps the
        rows of these steps and loses later ones. Raises UserError for a file that cannot be written."""
        path, folder = self._options.csv, self._options.tensorboard
        if path is not None:
            kept = self._rows_up_to(done, path) if done else ""
            write_whole(path, (HEADER + kept).encode(), is_table, force=self._options.force)
        if folder is not None:
            with self._told_of(folder):
                self._board = self._open(folder, purge_step=done + 1 if done else None)

    def _rows_up_to(self, done: int, path: str) -> str:
        """Return the rows of the first ``done`` steps in an existing CSV file of minidl, as text."""
        if not is_there(Path(path)):
            return ""
        text = read_text(path, most=MOST_METRICS_BYTES)
        rows = csv.DictReader(io.StringIO(text, newline="")) if is_table(text.encode()) else ()
        return table_rows(*(row for row in rows if set(row) == {*COLUMNS} and (row["step"] or "").isdecimal()
                            and is_whole(int(row["step"][:16])) and int(row["step"][:16]) <= done))

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of one step, named as in ``run_folder.COLUMNS``. Raises UserError if that fails."""
        full = {name: finite(row.get(name)) for name in COLUMNS}
        if self._options.csv is not None:
            with self._told_of(self._options.csv):
                append_to_file(Path(self._options.csv), table_rows(full).encode())
        if self._board is not None:
            with self._told_of(self._options.tensorboard):
                for name, value in full.items():
                    if name != "step" and value is not None:
                        self._board.add_scalar(name, value, full["step"])

        if self._logger is not None:
            self._call(self._logger, full)

    def _call(self, logger: Callable[..., Any], row: Mapping[str, Any]) -> None:
        """Call the user's function with the row's values, without those of None, and with ``step``, its number.
        Raises UserError, with the function's name, for its errors; UserError and MemoryError pass unchanged."""
        numbers = {name: value for name, value in row.items() if value is not None and name != "step"}
        try:
            logger(numbers, step=row["step"])
        except (UserError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also sys.exit, which must not end this program
            raise UserError(f"--logger {self._options.logger}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Write the numbers that are still buffered, and close the files."""
        if self._board is not None:
            with self._told_of(self._options.tensorboard):
                self._board.close()

    @staticmethod
    @contextmanager
    def _told_of(path: str | None) -> Iterator[None]:
        """Turn an OSError inside the ``with`` into a UserError that names the path."""
        try:
            yield
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
