"""Output files of a run, which flags such as --json and --save-weights name:
checked before the run, written at its end.

If one file cannot be written at the end, the others are still written, and then one error names all that failed. The
formats of the files are defined elsewhere.
"""

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TextIO, cast

from minidl.checkpoint import safetensors
from minidl.cli.app.options import STDOUT, Options
from minidl.cli.app.step_log import is_table
from minidl.errors import UserError
from minidl.nn import Module, lora
from minidl.outside.writing import Own, require_place, write_whole
from minidl.plan.formats import is_plan
from minidl.plan.trace_format import is_trace
from minidl.report import result as results
from minidl.report.result import Result
from minidl.view.page import is_page


def check_places(options: Options) -> None:
    """Raise UserError, before any training, if an output file that a flag names could not be written.
    Raise it, too, if two flags name one file. Changes no file."""
    places: set[str] = set()
    for path, own in ((options.json, results.is_own), (options.save, safetensors.is_own),
                      (options.save_plan, is_plan), (options.save_trace, is_trace), (options.report, is_page),
                      (options.csv, is_table)):
        if path is None or path == STDOUT and own is results.is_own:
            continue
        require_place(path, own, force=options.force)
        if os.path.realpath(path) in places:
            raise UserError(f"{path} is named for two files")
        places.add(os.path.realpath(path))


class FinalFiles:
    """Writes a run's output files at its end. ``out``: the text stream for ``--json -``."""

    def __init__(self, options: Options, out: TextIO) -> None:
        self._options = options
        self._out = out
        self._failures: list[str] = []

    def attempt(self, write: Callable[[], None]) -> None:
        """Call ``write``, which writes one file. A UserError is stored, and raised later by ``require_all``."""
        try:
            write()
        except UserError as error:
            self._failures.append(str(error))

    def parameters(self, model: Module) -> None:
        """Write parameters and buffers, by name, to the file of --save-weights; with --lora the adapters alone."""
        path = self._options.save
        if path is not None:
            state = model.state_dict if self._options.lora is None else partial(lora.adapters, model)
            self.attempt(lambda: safetensors.write_arrays(path, state(), force=self._options.force))

    def result(self, result: Result) -> None:
        """Write the numbers of the run to the file of --json."""
        path = self._options.json
        if path == STDOUT:
            print(result.to_json(), end="", file=self._out)
        elif path is not None:
            self.attempt(lambda: result.write(path, force=self._options.force))

    def text(self, path: str | None, own: Own, make: Callable[[], str]) -> None:
        """Write the text that ``make`` returns to the file ``path``; None: do nothing.
        An existing file is replaced only if ``own`` recognizes it as minidl's own, or with --force."""
        if path is not None:
            self.attempt(lambda: write_whole(path, make().encode(), own, force=self._options.force))

    def require_all(self, otherwise: str) -> None:
        """Raise UserError with the names of all files that were not written, followed by the text ``otherwise``."""
        if self._failures:
            raise UserError(f"{'; '.join(self._failures)}; {otherwise}")


class Silence(io.TextIOBase):
    """A stream that discards what is written to it."""

    def write(self, text: str) -> int:
        """Discard a text."""
        return len(text)


def printed_apart(options: Options) -> TextIO:
    """Return the stream for text that people read, apart from the JSON: stdout, or stderr if ``--json -`` uses stdout.
    With --quiet, return a stream that discards the text."""
    if options.quiet:
        return cast(TextIO, Silence())
    return sys.stderr if options.json == STDOUT else sys.stdout
