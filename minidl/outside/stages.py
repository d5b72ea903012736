"""Stages: the work that a command is doing, how much of it is done, and how much longer it takes.

Code of any layer names its long work with ``stage``. Without a teller that does nothing. A command has a ``Teller``,
whose ``tick`` a thread calls several times a second: when nothing was printed for ``every`` seconds, it prints one line
with all stages that are open. So no command is silent, and no code that works needs to know about printing.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from time import monotonic, perf_counter

EVERY_VARIABLE = "MINIDL_STAGE_SECONDS"  # of the environment: seconds without output before a line; 0: no lines
EVERY, TICK = 1.5, 0.25  # seconds: without output before a line is printed; between two calls of ``tick``

# Held while text is printed. A fork must not happen meanwhile, because the child could not print any more.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class Stage:
    """A piece of long work that is going on: ``done`` of ``total`` units are done (``total`` 0: unknown).
    text: its description, or a function that returns it. units: their name. began: seconds of the teller's clock."""

    def __init__(self, text: str | Callable[[], str], total: int = 0, units: str = "", began: float = 0.0) -> None:
        self.text, self.total, self.units, self.began = text, total, units, began
        self.done = 0

    def described(self) -> str:
        """Return the description of the work, with the number of units done if ``total`` is known."""
        text = self.text if isinstance(self.text, str) else self.text()
        return f"{text}: {self.done:,} of {self.total:,} {self.units}".rstrip() if self.total else text

    def remaining(self, now: float, usual: float | None) -> float | None:
        """Return the seconds left at ``now``, by the speed so far, else of ``usual`` in all; None if unknown.
        now: seconds of the teller's clock; usual: the seconds that the last such stage took."""
        passed = now - self.began
        if self.total and self.done:
            return passed / self.done * max(self.total - self.done, 0)
        return usual - passed if usual is not None and usual > passed else None


class Compilation:
    """The state of Numba's compilation of functions in this process, by any thread. count: functions so far.
    total: about how many there will be, 0 if unknown. going: True while a function is compiled. seconds: of all of
    them so far."""

    count = total = 0
    going = False
    seconds = 0.0
    _began = 0.0

    def begin(self, count: int) -> None:
        """Note that the compilation of function ``count``, from 1, begins."""
        self.count, self.going, self._began = count, True, perf_counter()

    def end(self) -> None:
        """Note that a compilation has ended."""
        self.going = False
        self.seconds += perf_counter() - self._began

    def described(self) -> str:
        """Return a line about the function that is compiled now; "" if none is."""
        about = f" of about {max(self.total, self.count)}" if self.total else ""
        return f"compiling function {self.count}{about}, once on this machine" if self.going else ""


COMPILATION = Compilation()


class Teller:
    """Prints a line about the open stages of a command whenever it has printed nothing for ``every`` seconds.

    say: called with a line, prints it. clock: returns seconds. quiet: set to True, it ends the printing of lines.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = monotonic, *,
                 every: float = EVERY) -> None:
        self.stages: list[Stage] = []
        self.quiet = False
        self._say, self._every = say, every
        self.clock = clock
        self._began = self._heard = clock()
        self._usual: dict[str, float] = {}  # seconds that the latest stage with this text took

    def heard(self) -> None:
        """Called when the command prints other text: no line about stages is due for the next ``every`` seconds."""
        self._heard = self.clock()

    def tick(self) -> None:
        """Print a line if nothing was printed for ``every`` seconds."""
        now = self.clock()
        if not self.quiet and now - self._heard >= self._every:
            self._heard = now
            self._say(self.line(now))

    def line(self, now: float) -> str:
        """Return the line about the open stages, the outermost first, with the time that has passed and that is left.
        The time left is that of the outermost stage with a known end. now: seconds of the clock."""
        stages = list(self.stages)
        parts = [text for text in (*(stage.described() for stage in stages), COMPILATION.described()) if text]
        parts = parts or ["working"]
        left = next((left for stage in stages
                     if (left := stage.remaining(now, self._usual.get(str(stage.text)))) is not None), None)
        parts.append(f"{_seconds(now - self._began)} so far" + (f", about {_seconds(left)} more" if left else ""))
        return "; ".join(parts)

    @contextmanager
    def within(self, stage: Stage) -> Iterator[Stage]:
        """Return a context in which ``stage`` is open, so that lines mention it."""
        stage.began = self.clock()
        self.stages.append(stage)
        try:
            yield stage
        finally:
            self.stages.remove(stage)
            self._usual[str(stage.text)] = self.clock() - stage.began


_teller: ContextVar[Teller | None] = ContextVar("teller", default=None)  # of the command that runs


@contextmanager
def stage(text: str | Callable[[], str], total: int = 0, units: str = "") -> Iterator[Stage]:
    """Return a context around long work, whose progress the running command prints, if it prints progress.
    It yields a ``Stage`` with these arguments; the caller sets its ``done``, and may change ``text`` and ``total``."""
    found, teller = Stage(text, total, units), _teller.get()
    if teller is None:
        yield found
        return
    with teller.within(found):
        yield found


def be_quiet() -> None:
    """Let the command that runs print no more lines about its stages."""
    teller = _teller.get()
    if teller is not None:
        teller.quiet = True


@contextmanager
def telling(teller: Teller, *, ticks: bool = True) -> Iterator[None]:
    """Return a context in which ``stage`` opens stages of this teller; with ``ticks``, a thread calls its ``tick``."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(TICK):
            with LOCK:
                if not ended.is_set():
                    teller.tick()

    token = _teller.set(teller)
    thread = threading.Thread(target=tick, name="stages", daemon=True)
    if ticks:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if ticks:
            thread.join()
        _teller.reset(token)


def every_seconds() -> float:
    """Return the seconds without output after which a line is printed, from MINIDL_STAGE_SECONDS; 0: no lines."""
    try:
        return max(float(os.environ.get(EVERY_VARIABLE, EVERY)), 0.0)
    except ValueError:
        return EVERY


def _seconds(seconds: float) -> str:
    return f"{ceil(seconds)} s" if seconds < 120 else f"{seconds / 60:.1f} min"
