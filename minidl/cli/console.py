"""Output to a terminal that never fails, whatever the text contains and wherever it goes.

While a command runs, stdout and stderr are ``Printed`` streams. Control characters, and characters that the stream
cannot encode, are escaped. If a command prints nothing for a while, a thread prints what it is doing (``StageLine``).
After a write has failed (a full disk, a closed pipe) nothing more is written, and ``Printed.failure`` holds the error.
``one_line`` shortens a text of any length to a message.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO, cast

from minidl.outside.stages import LOCK, Teller, every_seconds, telling

LONGEST_WORD, LONGEST_LINE = 400, 2000  # characters; a path may have some hundreds
_KEPT_OF_WORD = 150  # characters at either end of one that is too long
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def printable(text: str, *, keeps: str = "") -> str:
    """Return a text in which characters that do not show, except for those in ``keeps``, are escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keeps else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return a text as one line of limited length: long words are cut in their middle, a long line at its end."""
    text = _LONG_WORD.sub(lambda word: f"{word[0][:_KEPT_OF_WORD]}...{word[0][-_KEPT_OF_WORD:]}", text.strip())
    text = printable(text)
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + "..."


class Printed:
    """A text stream that never fails: it escapes characters that do not show, except those in ``keeps``.
    failure: the first error of ``stream``, None before it. After it, or with ``stream`` None, nothing is written."""

    def __init__(self, stream: TextIO | None, *, keeps: str) -> None:
        self.failure: Exception | None = None
        self.line: StageLine | None = None
        self._stream = stream
        self._keeps = keeps
        self.encoding = getattr(stream, "encoding", None) or "ascii"

    def write(self, text: str) -> int:
        """Write a text; characters that cannot be shown are escaped."""
        shown = printable(text, keeps=self._keeps).encode(self.encoding, "backslashreplace").decode(self.encoding)
        with LOCK:
            if self.line is not None:
                self.line.make_way()
            self._try("write", shown)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._try("flush")

    def _try(self, what: str, *arguments: str) -> None:
        if self._stream is None or self.failure is not None:
            return
        try:
            getattr(self._stream, what)(*arguments)
        except (OSError, ValueError) as error:  # the second: it was closed
            self.failure = error
            self._let_go(self._stream)

    def _let_go(self, stream: TextIO) -> None:
        """Discard the text that the stream still holds: the interpreter would fail to write it when it exits."""
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            return  # no file of the system's: the interpreter does not write it at its end

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute (``fileno``, ``buffer``) from the wrapped stream."""
        if self._stream is None:
            raise AttributeError(name)
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """True if the stream is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed
            return False


class StageLine:
    """A line on stderr that tells what a command is doing.
    On a terminal it is rewritten in place, and removed before other text is printed; elsewhere each line stays."""

    def __init__(self, err: Printed) -> None:
        self._err = err
        self._shown = False
        self.teller = Teller(self._say, every=every_seconds())

    def make_way(self) -> None:
        """Remove the line, because other text is about to be printed."""
        if self._shown:
            self._shown = False
            self._err._try("write", "\r" + " " * self._columns() + "\r")
            self._err._try("flush")
        self.teller.heard()

    def _say(self, text: str) -> None:
        if self._err.isatty():
            columns = self._columns()
            self._err._try("write", "\r" + text[:columns].ljust(columns))
            self._shown = True
        else:
            self._err._try("write", text + "\n")
        self._err._try("flush")

    @staticmethod
    def _columns() -> int:
        return max(shutil.get_terminal_size().columns - 1, 1)


@contextmanager
def printing() -> Iterator[tuple[Printed, Printed]]:
    """Inside the ``with`` block ``sys.stdout`` and ``sys.stderr`` are the two yielded ``Printed`` streams."""
    _hold_standard_numbers()
    before = sys.stdout, sys.stderr
    out, err = Printed(before[0], keeps="\n\t"), Printed(before[1], keeps="\n\t\r")
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    out.line = err.line = line = StageLine(err) if every_seconds() else None
    try:
        with telling(line.teller) if line is not None else nullcontext():
            yield out, err
    finally:
        if line is not None:
            line.make_way()
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def _hold_standard_numbers() -> None:
    """Open the file descriptors 0 to 2 if they are closed.
    Otherwise a file that minidl opens could get one of these numbers, and other code would print into it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(number)
