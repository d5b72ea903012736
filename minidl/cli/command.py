"""Ends every command in the same way: exit code 0, 2, 130 or 143, and at most one line on stderr.

    0         success
    2         a request that cannot be met; the line says which one, with its numbers
    130, 143  stopped by SIGINT (Ctrl-C) or SIGTERM: 128 plus the signal's number

A signal raises KeyboardInterrupt wherever the program is. Compiled code turns that into a SystemError, and Python
ignores it while an object is being freed. So every error after a signal counts as the signal's, and an ignored signal
is sent again. An unexpected error is printed in one line with its place in the code; Python's development mode
(``python -X dev``) shows the traceback instead.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from errno import EPIPE
from importlib import import_module
from types import FrameType
from typing import NoReturn

from minidl.cli.console import one_line, printing
from minidl.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the second is what schedulers send before they take a machine away
REFUSED = 2
AGAIN_SECONDS = 0.01  # after which a signal that was dropped is sent again: the object is gone by then


class Parser(argparse.ArgumentParser):
    """A parser of command lines that raises UserError for errors, so that they are printed like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError, where argparse would print its usage and end the program."""
        raise UserError(message)


class EndSignal:
    """Records the signal that has arrived, if any."""

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports for a program that a signal has ended."""
        return 128 + (self.number or 0)


def finish(name: str, story: Callable[[], int]) -> int:
    """Run a command by calling ``story()``; return its exit code, 2 after an error, 130 or 143 after a signal.

    Raises UserError if another command is running in this process, for instance because the model of ``--model`` is a
    function that starts one.
    """
    if _running.get():
        raise UserError(f"{name} is a command, and runs within no other")
    with _within(name), printing() as (out, err), _heeding_signals() as ended:
        message = ""
        try:
            code = story()
        except SystemExit as end:  # --help; or a stranger's module or policy, which does not decide about the code
            code, message = (0, "") if _is_help(end) else _told(name, end, ended)
        except BaseException as error:
            if ended.number is None and isinstance(error, Exception) and sys.flags.dev_mode and _unforeseen(error):
                raise
            code, message = _told(name, error, ended)
        out.flush()
        if not code and out.failure is not None and getattr(out.failure, "errno", None) != EPIPE:
            code, message = REFUSED, f"{name}: error: cannot write to standard output: {_why(out.failure)}"
        if message:
            err.write(message + "\n")
    return code


def choose(group: str, commands: Mapping[str, tuple[str, str]], words: Sequence[str]) -> int:
    """Run ``GROUP COMMAND ...`` and return its exit code. ``commands``: name -> (module, one line of help).
    The module is imported only if its command is named, and its ``main`` gets the remaining words. ``--help``, or no
    word, prints all lines of help."""
    if words and words[0] in commands:
        main: Callable[[Sequence[str]], int] = import_module(commands[words[0]][0]).main
        return main(words[1:])

    def story() -> int:
        if words and words[0] not in ("-h", "--help"):
            near = get_close_matches(words[0], commands, n=1)
            raise UserError(f"no command {words[0]!r}; "
                            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}"))
        print(f"{group} COMMAND ...   (--help after a command says more)\n")
        for name, (_, about) in commands.items():
            print(f"  {name:10} {about}")
        return 0

    return finish(group, story)


def note_new_name(former: str, now: str) -> None:
    """Print on stderr that ``former`` is now called ``now``; the former name is still accepted in this version."""
    print(f"{former} is now: {now}", file=sys.stderr)


def carry_out(module: str, command: str) -> NoReturn:
    """Run ``python -m MODULE ...`` as ``minidl COMMAND ...``, after a line on stderr with the new spelling.
    The old spelling is still accepted in this version."""
    note_new_name(f"python -m {module}", f"minidl {command}")
    sys.exit(import_module("minidl.__main__").main([command, *sys.argv[1:]]))


def running() -> str:
    """Return the name of the running command; "" if none runs."""
    return _running.get()


def training_command() -> str:
    """Return the command that trains, as a user types it:
    ``python train.py`` if that is running, else ``minidl train``."""
    return "python train.py" if running() == "train.py" else "minidl train"


_running: ContextVar[str] = ContextVar("running", default="")  # the name of the command that is carried out


@contextmanager
def _within(name: str) -> Iterator[None]:
    token = _running.set(name)
    try:
        yield
    finally:
        _running.reset(token)


def _is_help(end: SystemExit) -> bool:
    """True if the parser of the command line has ended the command with success, as after ``--help``."""
    return not end.code and traceback.extract_tb(end.__traceback__)[-1].filename == argparse.__file__


def _told(name: str, error: BaseException, ended: EndSignal) -> tuple[int, str]:
    """Return the exit code and the line on stderr of a command that an error or a signal has ended."""
    if ended.number is not None or isinstance(error, KeyboardInterrupt):
        return (ended.exit_code if ended.number is not None else 128 + signal.SIGINT), f"{name}: stopped"
    return REFUSED, f"{name}: error: {one_line(described(error))}"


def described(error: BaseException) -> str:
    """Return the text of an error, which may have several lines: ``one_line`` joins them.
    With the type and the place in the code, unless it is a UserError, a MemoryError or an OSError."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError):  # this machine has less than the budget
        return str(error) or "this machine has less memory than was asked for"
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, _why(error)) if part)
    if isinstance(error, SystemExit):
        return with_place(error)
    return f"unforeseen {with_place(error)} (python -X dev shows the way there)"


def with_place(error: BaseException) -> str:
    """Return the type and text of an error, and the place in the code where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error}" + (f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def _unforeseen(error: BaseException) -> bool:
    return not isinstance(error, (UserError, MemoryError, OSError))


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def _heeding_signals() -> Iterator[EndSignal]:
    """Inside the ``with`` block each of SIGNALS raises KeyboardInterrupt in the main thread."""
    ended = EndSignal()
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    def raise_it(number: int, frame: FrameType | None) -> None:
        ended.number = number
        raise KeyboardInterrupt

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if ended.number is not None and issubclass(dropped.exc_type, KeyboardInterrupt):
            again = threading.Timer(AGAIN_SECONDS, signal.raise_signal, [ended.number])
            again.daemon = True
            again.start()
        else:
            hook(dropped)

    handlers = {number: signal.signal(number, raise_it) for number in SIGNALS}
    hook, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield ended
    finally:
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
