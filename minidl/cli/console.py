"""Printing that never fails, whatever the text holds and wherever it goes. Knows no command.

While a command runs, both of its streams are ``Printed``. Control characters and characters that the stream cannot
show are escaped. After a write has failed (a full disk, a reader that has left) nothing more is written, and
``Printed.failure`` says so. ``one_line`` cuts a text of any length to a message.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

LONGEST_WORD, LONGEST_LINE = 400, 2000  # characters; a path may have some hundreds
_KEPT_OF_WORD = 150  # characters at either end of one that is too long
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def printable(text: str, *, keeps: str = "") -> str:
    """A text whose characters all show: others, but for those in ``keeps``, are written as Python escapes them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keeps else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """A text as one line of limited length: long words lose their middle, and a long line its end."""
    text = _LONG_WORD.sub(lambda word: f"{word[0][:_KEPT_OF_WORD]}...{word[0][-_KEPT_OF_WORD:]}", text.strip())
    text = printable(text)
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + "..."


class Printed:
    """A text stream that accepts every text. ``failure``: the error after which it writes nothing more; None before."""

    def __init__(self, stream: TextIO | None, *, keeps: str) -> None:
        self.failure: Exception | None = None
        self._stream = stream
        self._keeps = keeps
        self.encoding = getattr(stream, "encoding", None) or "ascii"

    def write(self, text: str) -> int:
        """Write a text; characters that cannot be shown are escaped."""
        shown = printable(text, keeps=self._keeps).encode(self.encoding, "backslashreplace").decode(self.encoding)
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
        """Discard the text that the stream still holds: the interpreter would fail to write it at its end."""
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            return  # no file of the system's: the interpreter does not write it at its end

    def __getattr__(self, name: str) -> Any:
        """All other attributes (``fileno``, ``buffer``) are the stream's own."""
        if self._stream is None:
            raise AttributeError(name)
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """True if the stream is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed
            return False


@contextmanager
def printing() -> Iterator[tuple[Printed, Printed]]:
    """Inside, ``sys.stdout`` and ``sys.stderr`` are these streams; the second lets a bar return to its line's start."""
    _hold_standard_numbers()
    before = sys.stdout, sys.stderr
    out, err = Printed(before[0], keeps="\n\t"), Printed(before[1], keeps="\n\t\r")
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out, err
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def _hold_standard_numbers() -> None:
    """Open those of the descriptors 0 to 2 that are closed: else a file of ours could get such a number, and other code
    would write to it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(number)
