"""``minidl view``: writes an HTML page that shows the memory of one training step, or of two steps side by side.

    minidl view --model resnet50 --batch 340 -o page.html          a training, with the flags of ``minidl train``
    minidl view RUN -o page.html                                   a run folder: the training is run again
    minidl view TRACE --memory-budget 60% -o page.html             a trace, or torch:package.module:f:8, is run
    minidl view PLAN --model vgg16 --batch 340 -o page.html        a training that follows a saved plan
    minidl view SNAPSHOT.pickle -o page.html                       PyTorch's memory on a GPU, as it dumps it
    minidl view A.html --against B.html -o page.html               two pages joined into one

The program of ``minidl train`` runs the training and records its last step.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidl import policies
from minidl.cli.app import train
from minidl.cli.app.config import FLAG
from minidl.cli.app.flags import all_flags, parse
from minidl.cli.app.run_folder import ARGUMENTS, read_arguments
from minidl.cli.app.trust import require_trust
from minidl.cli.app.words import renamed, without
from minidl.cli.command import Parser, finish
from minidl.device import profiles
from minidl.errors import UserError
from minidl.outside.reading import is_file, is_folder, open_file, reading
from minidl.outside.writing import HEAD_BYTES, Own, begins_with, require_place, write_whole
from minidl.plan.formats import is_plan
from minidl.plan.trace_format import is_trace
from minidl.view import exports
from minidl.view.packing import pack
from minidl.view.page import is_page, write_page
from minidl.view.recorded import read_page
from minidl.view.snapshot import PICKLE, read_snapshot

NAME = "minidl view"
# By the name of its flag: what makes the file, and which files are such ones.
EXPORTS: dict[str, tuple[Callable[[Mapping[str, Any]], str | bytes], Own]] = {
    "perfetto": (exports.perfetto, begins_with(b'{"traceEvents":')),
    "memory_viz": (exports.memory_viz, begins_with(b"\x80\x04")),
    "svg": (exports.svg, begins_with(b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900'))}
STEPS = 12  # of a training on real data that is made again to be looked at: enough for a plan to be followed
# The flags of a run folder's command line for its own files, which are left out here.
OWN_FILES = ("--run-dir", "--resume", "--json", "--save-weights", "--save-plan", "--save-trace", "--report",
             "--csv", "--tensorboard", "--logger", "--checkpoint-every", "--keep-checkpoints", "--explain", FLAG)


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """The source of a page's recording: an existing page, or a training, given by the words of its command line.
    With ``trace`` the words say how this trace is run; with ``snapshot``, a file of PyTorch's memory, they are
    the name of its device, if it was told."""

    page: str | None
    words: tuple[str, ...] = ()
    trace: str | None = None
    snapshot: str | None = None


def main(words: Sequence[str]) -> int:
    """Make the page that the words ask for; return the exit code."""
    found: list[RecordingSource] = []
    options: Any = None

    def understand() -> int:
        nonlocal options
        options, flags = own_flags().parse_known_args(words)
        first = _name_in(flags)
        if first is not None:
            flags.remove(first)
        require_place(options.out, is_page, force=options.force)
        for kind, (_, own) in EXPORTS.items():
            if (path := getattr(options, kind)) is not None:
                require_place(path, own, force=options.force)
        found.append(_source(first, flags, trusted=options.trust))
        if options.against is not None:
            found.append(_other(found[0], options.against, flags, trusted=options.trust))
        return 0

    if (code := finish(NAME, understand)) or not found:  # --help has no sources
        return code
    with tempfile.TemporaryDirectory() as folder:
        pages = []
        for number, source in enumerate(found):
            path = source.page or str(Path(folder) / f"{number}.html")
            if source.page is None and (code := _record(source, path)):
                return code
            pages.append(path)
        return finish(NAME, lambda: _join(pages, options))


def _record(source: RecordingSource, path: str) -> int:
    """Make a page of one recording and write it to ``path``; return the exit code."""
    trace, snapshot = source.trace, source.snapshot
    if trace is None and snapshot is None:
        return train.main([*source.words, "--report", path], name=NAME)

    def run() -> int:
        if snapshot is not None:
            profile = profiles.named(source.words[0]) if source.words else None
            write_page(path, [pack(read_snapshot(snapshot, profile))])
            return 0
        assert trace is not None
        from minidl.cli.traced import packed  # loads the laboratory

        write_page(path, [packed(trace, source.words)])
        return 0

    return finish(NAME, run)


def _other(first: RecordingSource, name: str, flags: Sequence[str], *, trusted: bool) -> RecordingSource:
    """Return the second recording of a page:
    the source called ``name`` or, if ``name`` is a policy, the first source under that policy."""
    if first.page is None and (name in policies.names() or ":" in name) and not Path(name).exists():
        return RecordingSource(None, (*without(first.words, "--policy", "--plan"), "--policy", name), first.trace)
    return _source(name, flags, trusted=trusted)


def own_flags() -> Parser:
    """Return the parser of the flags that only ``minidl view`` has; all other flags are those of a training."""
    parser = Parser(prog=NAME, allow_abbrev=False,
                    usage=f"{NAME} [RUN|TRACE|PLAN|PAGE] [-o FILE.html] [--against OTHER] ...",
                    description="A page that shows the memory of a step: of a run folder, of a trace, of a training "
                                "under a saved plan, of a page, or, without any of these, of a training. All other "
                                "flags are those of minidl train; of a trace --policy, --memory-budget, --device "
                                "and --steps.")
    parser.add_argument("--against", metavar="RUN|TRACE|PLAN|PAGE|POLICY",
                        help="another one beside it, on one clock; or the same training under another policy")
    parser.add_argument("-o", "--out", metavar="FILE.html", default="memory.html", help="(default: memory.html)")
    parser.add_argument("--perfetto", metavar="FILE.json", help="a timeline for Perfetto, too")
    parser.add_argument("--memory-viz", metavar="FILE.pickle", help="a snapshot for PyTorch's memory_viz, too")
    parser.add_argument("--svg", metavar="FILE.svg", help="a drawing, too")
    parser.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")
    parser.add_argument("--trust", action="store_true", help="run the code of a model that a run folder names")
    return parser


def _name_in(words: Sequence[str]) -> str | None:
    """Return the one word that is neither a flag nor a flag's value, before or after the flags; None if there is none.
    """
    if words and not words[0].startswith("-"):
        return words[0]
    stray = all_flags().parse_known_args(words)[1]
    return stray[0] if len(stray) == 1 and not stray[0].startswith("-") else None


def _source(name: str | None, flags: Sequence[str], *, trusted: bool) -> RecordingSource:
    """Return the recording source that ``name`` stands for. Raises UserError if no page can be made of it."""
    if name is None:
        return RecordingSource(None, tuple(flags))
    if is_folder(Path(name)):
        return RecordingSource(None, (*_again(Path(name), trusted=trusted), *flags))
    if not is_file(Path(name)):
        if name.startswith("torch:"):
            return RecordingSource(None, tuple(flags), name)
        raise UserError(f"there is no {name}")
    with reading(Path(name)), open_file(Path(name)) as file:
        head = file.read(HEAD_BYTES)
    if is_page(head):
        return RecordingSource(name)
    if is_plan(head):
        return RecordingSource(None, (*flags, "--plan", name))
    if is_trace(head) or name.endswith((".csv", ".log")):
        return RecordingSource(None, tuple(flags), name)
    if head.startswith(PICKLE):
        device = Parser(allow_abbrev=False)
        device.add_argument("--device", type=lambda text: text.removeprefix("sim:"))
        known, others = device.parse_known_args(flags)
        if others:
            raise UserError(f"a snapshot is not run: it takes no flag but --device NAME, not {' '.join(others)}")
        return RecordingSource(None, (known.device,) if known.device else (), snapshot=name)
    raise UserError(f"{name} is no page, no plan, no trace, no snapshot and no run folder")


def _again(folder: Path, *, trusted: bool) -> list[str]:
    """Return a run folder's command line, with the values that the run had, without flags for output files.
    On real data it is of STEPS (12) steps."""
    if not is_file(folder / ARGUMENTS):
        raise UserError(f"{folder} is no run folder: it has no {ARGUMENTS}")
    noted, resolved = read_arguments(folder)
    words = without(renamed(noted), *OWN_FILES)
    require_trust(folder, all_flags().parse_known_args(words)[0], trusted=trusted)
    options = parse(words)
    words = list(options.arguments)
    if resolved is not None:
        words += ["--memory-budget", str(resolved.memory_budget), "--host-memory", str(resolved.host_memory),
                  "--batch", str(resolved.batch)]
    if options.data != "synthetic":
        words = [*without(words, "--epochs"), "--steps", str(STEPS)]
    return words


def _join(pages: Sequence[str], options: Any) -> int:
    """Write one page with the recordings of several ``pages``, and those exports of the first that the flags ask for.
    """
    recordings = [recording for path in pages for recording in read_page(path)]
    if len(recordings) > 2 and len(pages) > 1:  # one page may have several ranks
        raise UserError(f"{len(recordings)} recordings, and a page shows two at most")
    write_page(options.out, recordings, force=options.force)
    print(f"wrote {options.out}")
    for kind, (make, own) in EXPORTS.items():
        if (path := getattr(options, kind)) is not None:
            data = make(recordings[0])
            write_whole(path, data if isinstance(data, bytes) else data.encode(), own, force=options.force)
            print(f"wrote {path}")
    return 0
