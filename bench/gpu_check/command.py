"""The check of one GPU: numbers, bits, bandwidths, speed beside PyTorch, training in little memory, predictions.

    python bench/gpu.py [--parts ops models ...] [--device cuda] [--quick] [--minutes 10] [--out bench/results]

It prints as it goes. Each part runs in a process of its own, so that one that crashes, hangs or breaks the GPU's
context costs itself alone; what it had found by then is kept. Written after each part: ``gpu.json`` with everything,
``gpu.md`` to be read, and in ``gpu/`` the parts' own files, among them ``profile.json``: this GPU, for --device
sim:FILE. Parts that are run later are added to those that are there. Nothing needs a network connection. What each part
does stands in its file beside this one.

The first run compiles kernels and times plans of cuDNN, which are kept in ``~/.cache/minidl``. The minutes are divided
among the parts that were asked for. A part that left something out, or failed, goes on in the next call with the same
``--out``, so that ``--parts models`` may be called until it has compared every network.

``--device cpu --sizes tiny`` rehearses all of it without a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.gpu_check.parts import PARTS, run
from bench.gpu_check.report import markdown
from bench.gpu_check.setting import Record, Setting
from bench.gpu_check.sizes import NAMED
from minidl.device.cuda import missing

ROOT = Path(__file__).resolve().parents[2]  # where the packages lie
GRACE = 20.0  # seconds over its time after which a part is ended
DEAD = 3  # exit code of a part whose device answers no more: a new process goes on
FIRST = "the check could not begin: "


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all parts ran and nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"which: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--device", default="cuda", help="(default: cuda)")
    parser.add_argument("--sizes", choices=NAMED, default="full", help="how large everything is (default: full)")
    parser.add_argument("--quick", action="store_const", const="quick", dest="sizes", help="the same as --sizes quick")
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything (default: 10)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="(default: bench/results)")
    parser.add_argument("--anew", action="store_true", help="let no part go on where the last call ended")
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one is not None:
        return run_here(args)
    if args.device.startswith("cuda"):
        message = missing.message()
        if message is not None:
            print(FIRST + message, file=sys.stderr)
            return 1
    return run_all(args)


def run_here(args: argparse.Namespace) -> int:
    """Run one part in this process; write its results to its own file. Returns 0, 1 if something failed, or ``DEAD``.
    """
    results = read(args.out / "gpu.json")
    setting = Setting(args.device, NAMED[args.sizes], args.out / "gpu", results.get("parts", {}),
                      perf_counter() + args.seconds)
    record = Record(part_file(args.out, args.one), tell=lambda line: print(line, flush=True),
                    before=read(part_file(args.out, args.one)))
    run(PARTS[args.one], setting, record)
    return DEAD if record.dead is not None else 1 if record.failures else 0


def run_all(args: argparse.Namespace) -> int:
    """Run the parts one after the other, then write the report; return the exit status."""
    (args.out / "gpu").mkdir(parents=True, exist_ok=True)
    results = read(args.out / "gpu.json")
    results.setdefault("parts", {})
    started, failed = perf_counter(), False
    chosen = [name for name in PARTS if name in args.parts]
    for place, name in enumerate(chosen):
        left = 60 * args.minutes - (perf_counter() - started)
        print(f"\n== {name}", flush=True)
        if args.anew or not goes_on(results["parts"].get(name, {}), args):
            part_file(args.out, name).unlink(missing_ok=True)
        begun = perf_counter()
        words = run_apart(args, name, share(chosen[place:]) * left) if left > 0 else (
            f"not run: the {args.minutes:g} minutes were over")
        found = read(part_file(args.out, name)) or {"found": {}, "failures": [], "left out": []}
        if words is not None and (words or not found["failures"]):
            words = words or f"{name}: its process ended early"
            found["failures"].append(words)
            print(f"FAILED {words}", flush=True)
        failed |= bool(found["failures"])
        results["parts"][name] = {**found, "device": args.device, "sizes": args.sizes,
                                  "seconds": perf_counter() - begun}
        (args.out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (args.out / "gpu.md").write_text(markdown(results["parts"]), encoding="utf-8")
    print(f"\n{args.out / 'gpu.md'} and gpu.json were written, in {perf_counter() - started:.0f} seconds", flush=True)
    return int(failed)


def share(parts: Sequence[str]) -> float:
    """Return the share of the remaining time that the first of these parts may take.

    Time that a part does not need is left to the later ones.
    """
    return PARTS[parts[0]].seconds / sum(PARTS[name].seconds for name in parts)


def goes_on(before: Mapping[str, Any], args: argparse.Namespace) -> bool:
    """Return True if a part goes on where an earlier call on the same device with the same sizes ended.

    That is so where something was left out or failed. A part that ended well begins anew.
    """
    return ((before.get("device"), before.get("sizes")) == (args.device, args.sizes)
            and bool(before.get("left out") or before.get("failures")))


def run_apart(args: argparse.Namespace, name: str, seconds: float) -> str | None:
    """Run one part in a process of its own, and again in another each time that the device has died.

    Returns None if the part ended well, "" if the part has reported its failures itself, else the failure as text.
    """
    ends = perf_counter() + seconds
    while True:
        left = max(ends - perf_counter(), 0.0)
        command = [sys.executable, "-m", "bench.gpu_check.command", "--one", name, "--device", args.device,
                   "--sizes", args.sizes, "--out", str(args.out), "--seconds", str(left)]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            code = subprocess.run(command, timeout=left + GRACE, check=False,
                                  env={**os.environ, "PYTHONPATH": paths}).returncode
        except subprocess.TimeoutExpired:
            return f"{name}: ended after {seconds + GRACE:.0f} seconds"
        if code != DEAD:
            return None if code == 0 else "" if code == 1 else f"{name}: its process ended with code {code}"
        if perf_counter() > ends:
            return f"{name}: the device died, and the time was up"
        print(f"{name}: the device answers no more; a new process goes on", flush=True)


def part_file(out: Path, name: str) -> Path:
    """Return the path of the file that a part writes its results to."""
    return out / "gpu" / f"{name}.json"


def read(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if there is no file, or no JSON in it."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return data
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
