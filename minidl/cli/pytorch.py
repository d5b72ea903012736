"""``minidl torch run SCRIPT``: runs an unchanged PyTorch program within a budget of device memory.

    minidl torch run --budget 12GiB train.py --epochs 3

Arguments after the script are the script's own. At its end a report on its memory goes to stderr, unless the budget is
``none`` (extra ``torch``).
"""

import argparse
import runpy
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
    made.add_argument("--budget", metavar="BYTES", required=True,
                      help="of the device, like 12GiB; none: the script runs as without minidl")
    made.add_argument("--host", metavar="BYTES", help="of the host, for copies (default: no limit)")
    made.add_argument("--policy", metavar="NAME", default="auto", help="what plans (default: auto)")
    made.add_argument("--no-recompute", action="store_true", help="swap only: nothing is computed again")
    made.add_argument("--digest", action="store_true",
                      help="print in the end a SHA-256 of all parameters and optimizer states, to compare two runs")
    made.add_argument("--explain", action="store_true", help="say in the end what leaves by the plan, and why")
    for flag, (what, _, _) in FILES.items():
        made.add_argument(flag, metavar="FILE", help=f"write {what} in the end")
    made.add_argument("script", metavar="SCRIPT.py")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def main(words: Sequence[str]) -> int:
    """Run the script within its budget, as the words say; return the exit code."""
    options: Any = None

    def understand() -> int:
        nonlocal options
        found = parser().parse_args(list(words))
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
                require_place(_path(found, flag), own)
        options = found
        return 0

    if (code := finish(NAME, understand)) or options is None:
        return code
    return _run(options)


def _run(options: Any) -> int:
    """Run the script as ``python SCRIPT`` does; return the exit code.
    Its errors pass through, except a UserError, such as one about the budget: that is one line, and exit code 2."""
    memory: Any = None
    before = sys.argv, list(sys.path)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    try:
        from minidl import torch
        from minidl.torch.digest import digest, stepping

        if options.budget != UNMANAGED:
            memory = torch.managed(options.budget, policy=options.policy, host=options.host,
                                   recompute=not options.no_recompute)
        noting: AbstractContextManager[list[Any]] = stepping() if options.digest else nullcontext([])
        with noting as optimizers, memory or nullcontext():
            runpy.run_path(options.script, run_name="__main__")
        if memory is not None:
            _tell(memory, options)
        if options.digest:
            print(f"digest  {digest(optimizers)}", file=sys.stderr)
    except UserError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        if isinstance(error, MemoryError):  # the budget was refused
            _tell(memory, options, refused=True)
        return REFUSED
    finally:
        sys.argv, sys.path[:] = before
        if memory is not None:
            print(memory.report(), file=sys.stderr)
    return 0


def _path(options: Any, flag: str) -> Any:
    return getattr(options, flag.strip("-").replace("-", "_"))


def _tell(memory: Any, options: Any, *, refused: bool = False) -> None:
    """Write the files that the flags name; print their names and, with --explain, what leaves and why, on stderr.
    Raises UserError for a file that cannot be written, or if there is nothing to show. refused: the budget was refused,
    and the command ends with that error, so any further error is only printed on stderr."""
    def one(flag: str, method: str, *path: str) -> None:
        try:
            said = getattr(memory, method)(*path)
        except UserError as error:
            if not refused:
                raise
            print(f"{flag}: nothing to show: {error}", file=sys.stderr)
        else:
            print(said or f"wrote {path[0]}", file=sys.stderr)

    for flag, (_, method, _) in FILES.items():
        if _path(options, flag) is not None:
            one(flag, method, _path(options, flag))
    if options.explain:
        one("--explain", "explain")
