"""Shows progress on stderr: on a terminal one line that is rewritten, elsewhere separate lines, with --quiet nothing.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tqdm import tqdm

from minidl.data import AnyBatch

LINES_SECONDS = 1.0  # between two lines of progress where each stays


class Bar(Protocol):
    """A progress bar, as of tqdm:
    iterating over it yields the batches of the steps; a text beside it tells the last step."""

    def __iter__(self) -> Iterator[AnyBatch]:
        """Yield the batches."""

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        """Set the text beside the bar. ``refresh``: show it now, and not with the next step."""


class Lines:
    """Progress as lines: a step prints one if the last is LINES_SECONDS old; the last step of the run always does."""

    def __init__(self, batches: Iterable[AnyBatch], done: int, steps: int, clock: Callable[[], float]) -> None:
        self._batches, self._done, self._steps, self._clock = batches, done, steps, clock
        self._text = ""
        self._told = -LINES_SECONDS

    def __iter__(self) -> Iterator[AnyBatch]:
        """Yield the batches; print a line about a step when the next batch is asked for."""
        for batch in self._batches:
            yield batch
            self._done += 1
            self._tell(always=self._done == self._steps)

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        """Set the text of the next lines. refresh: print one now, unless the last was less than LINES_SECONDS ago."""
        self._text = desc
        if refresh:
            self._tell()

    def _tell(self, *, always: bool = False) -> None:
        if (always or self._clock() - self._told >= LINES_SECONDS) and sys.stderr is not None:
            self._told = self._clock()
            sys.stderr.write(f"{self._done}/{self._steps}: {self._text}\n")
            sys.stderr.flush()


class Silent:
    """Progress that prints nothing, for ``--quiet``."""

    def __init__(self, batches: Iterable[AnyBatch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[AnyBatch]:
        """Yield the batches."""
        return iter(self._batches)

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        """Ignore the text: nothing is printed."""


def bar(batches: Iterable[AnyBatch], done: int, steps: int, clock: Callable[[], float], *,
        quiet: bool) -> AbstractContextManager[Bar]:
    """Return a context with the Bar for a run of ``steps`` steps, ``done`` of them done; quiet: it is silent."""
    if quiet:
        return nullcontext(Silent(batches))
    if sys.stderr is not None and sys.stderr.isatty():
        shown: AbstractContextManager[Bar] = tqdm(batches, initial=done, total=steps,
                                                  bar_format="{n_fmt}/{total_fmt} |{bar:20}| {desc}")
        return shown
    return nullcontext(Lines(batches, done, steps, clock))
