"""What is being tried, in one line of a terminal that the next trial writes over. Knows no trial."""

import sys
from types import TracebackType

from minidl.units import format_bytes


class Trying:
    """A line while trials run inside, and none after; nothing where nobody watches."""

    def __init__(self) -> None:
        self._shown = 0  # characters
        self._watched = sys.stderr.isatty() if sys.stderr is not None else False

    def note(self, batch: int, budget_bytes: int) -> None:
        """A trial begins."""
        self._show(f"trying batch {batch} in {format_bytes(budget_bytes)}")

    def __enter__(self) -> "Trying":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        if self._watched and (text or self._shown):
            sys.stderr.write("\r" + text.ljust(self._shown) + ("" if text else "\r"))
            sys.stderr.flush()
            self._shown = len(text)
