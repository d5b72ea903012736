"""``minidl torch run SCRIPT``: runs an unchanged PyTorch program within a budget of device memory.

    minidl torch run --budget 12GiB train.py --epochs 3

Arguments after the script are the script's own. However the script ends, a report on its memory then goes to stderr,
unless the budget is ``none`` (extra ``torch``).
"""

import argparse
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from os.path import abspath
from pathlib import Path
from typing import Any

from minidl import policies
from minidl.cli.command import REFUSED, Parser, finish
from minidl.errors import UserError
from minidl.outside.units import parse_bytes
from minidl.outside.writing import Own, require_place
from minidl.plan.formats import is_plan
from minidl.plan.trace_format import is_trace
from minidl.view.page import is_page

NAME = "minidl torch"
UNMANAGED = "none"  # the budget under which a script runs without management
# By its flag: what a file holds, the method that writes it, and which files may be written over.
FILES: dict[str, tuple[str, str, Own]] = {
    "--page": ("a page of the planned step's memory", "page", is_page),
    "--save-trace": ("the recorded step", "save_trace", is_trace), "--save-plan": ("the plan", "save_plan", is_plan)}


def parser() -> Parser:
    """Return the parser of the flags before the script's name, and of that name."""
    made = Parser(prog=NAME, allow_abbrev=False, usage=f"{NAME} run --budget BYTES [...] SCRIPT.py [its arguments]",
                  description="Run a PyTorch program within a budget of device memory, with the bits that it has "
                              "without.")
    made.add_argument("action", choices=["run"], metavar="run", help="run a script")
    made.add_argument("--budget", metavar="BYTES",  # required, but the error for an unknown flag comes first
                      help="of the device, like 12GiB; none: the script runs as without minidl")
    made.add_argument("--host", metavar="BYTES", help="of the host, for copies (default: no limit)")
    made.add_argument("--policy", metavar="NAME", default="auto", help="what plans (default: auto)")
    made.add_argument("--no-recompute", action="store_true", help="swap only: nothing is computed again")
    made.add_argument("--digest", action="store_true",
                      help="print in the end a SHA-256 of all parameters and optimizer states, to compare two runs")
    made.add_argument("--explain", action="store_true", help="say in the end what leaves by the plan, and why")
    for flag, (what, _, _) in FILES.items():
        made.add_argument(flag, metavar="FILE", type=abspath,  # the script may change the folder
                          help=f"write {what} in the end")
    made.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    made.add_argument("script", metavar="SCRIPT.py")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="[its arguments]", help=argparse.SUPPRESS)
    return made


def main(words: Sequence[str]) -> int:
    """Run the script within its budget, as the words say; return the exit code."""
    options: Any = None

    def understand() -> int:
        nonlocal options
        found = parser().parse_args(list(words))
        if found.budget is None:
            raise UserError(f"--budget BYTES is missing: flags of {NAME} run come before the script, {found.script}")
        if found.budget == UNMANAGED and (found.explain or any(_path(found, flag) for flag in FILES)):
            raise UserError(f"--budget {UNMANAGED} manages nothing: it takes neither --explain nor "
                            f"{', '.join(FILES)}")
        for size in (found.budget, found.host):
            if size is not None and size != UNMANAGED:
                parse_bytes(size)
        policies.create(found.policy)
        if not Path(found.script).is_file():
            raise UserError(f"there is no script {found.script}")
        for flag, (_, _, own) in FILES.items():
            if _path(found, flag) is not None:
                require_place(_path(found, flag), own, force=found.force)
        options = found
        return 0

    if (code := finish(NAME, understand)) or options is None:
        return code
    return _run(options)


def _run(options: Any) -> int:
    """Run the script as ``python SCRIPT`` does, and tell what the flags ask for; return the exit code.
    An error of the script, Ctrl-C and an exit status other than 0 pass through. Only a UserError, such as one about the
    budget, becomes one line and exit code 2."""
    memory: Any = None
    optimizers: list[Any] = []
    end: BaseException | None = None
    before = sys.argv, list(sys.path)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    try:
        from minidl import torch
        from minidl.torch.digest import stepping

        if options.budget != UNMANAGED:
            memory = torch.managed(options.budget, policy=options.policy, host=options.host,
                                   recompute=not options.no_recompute)
        noting: AbstractContextManager[list[Any]] = stepping() if options.digest else nullcontext(optimizers)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as the command has set it while modules load
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with noting as optimizers, memory or nullcontext():
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as exit_:
        end = exit_ if exit_.code else None
    except UserError as error:
        end = error
        print(f"{NAME}: error: {error}", file=sys.stderr)
    except BaseException as error:
        end = error
    told = _tell(memory, options, optimizers)
    sys.argv, sys.path[:] = before
    if end is not None and not isinstance(end, UserError):
        raise end
    return REFUSED if end is not None or not told else 0


def _path(options: Any, flag: str) -> Any:
    return getattr(options, flag.strip("-").replace("-", "_"))


def _tell(memory: Any, options: Any, optimizers: list[Any]) -> bool:
    """Write the files that the flags name; print the explanation, the digest and the report on stderr.
    A flag that fails gets an error on stderr, and the other flags are still carried out. Return True if none fails.
    memory: the ``managed`` of the script, if any. optimizers: those that have stepped."""
    def written(method: str, path: str) -> str:
        getattr(memory, method)(path, force=options.force)
        return f"wrote {path}"

    def digested() -> str:
        from minidl.torch.digest import digest

        return f"digest  {digest(optimizers)}"

    wanted: dict[str, Callable[[], str]] = {}
    if memory is not None:
        wanted = {flag: partial(written, method, _path(options, flag)) for flag, (_, method, _) in FILES.items()
                  if _path(options, flag) is not None}
        if options.explain:
            wanted["--explain"] = memory.explain
    if options.digest:
        wanted["--digest"] = digested
    told = True
    for flag, show in wanted.items():
        try:
            print(show(), file=sys.stderr)
        except UserError as error:
            told = False
            print(f"{NAME}: error: {flag}: {error}", file=sys.stderr)
    if memory is not None:
        print(memory.report(), file=sys.stderr)
    return told
