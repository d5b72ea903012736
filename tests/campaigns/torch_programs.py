"""Random PyTorch programs under ``minidl.torch``, as many as wanted.

    python -m tests.campaigns.torch_programs --count 100000 --seed 0 [--minutes 60] [--mutant NAME]

Each runs unmanaged, and then with all that may leave swapped, dropped, and by turns; bits must be the same, or the
error of PyTorch itself. ``--mutant`` plants a mistake (``tests/support/torch_mutants.py``), and ends at the first
program that finds it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "support"
if str(SUPPORT) not in sys.path:  # a test has it there already
    sys.path.insert(0, str(SUPPORT))
HOWS = ("swap", "mixed", "drop")
PROGRESS = 1000  # programs between two lines of progress


@dataclass(frozen=True)
class Run:
    """A program under one kind of plan. replayed: calls that were carried out again; told: the error it ended with."""

    seed: int
    how: str
    same: bool
    replayed: int
    told: str

    def __str__(self) -> str:
        from torch_random import drawn

        names = ", ".join(name for name, _, _ in drawn(self.seed))
        return f"seed {self.seed}, {self.how}: {self.told or 'other bits'}; {names}"


def runs(seeds: Iterable[int]) -> Iterator[Run]:
    """All runs of these programs."""
    from torch_nets import forced, same
    from torch_random import outcome

    for seed in seeds:
        expected: Any = outcome(seed)
        for how in HOWS:
            memory = forced(how)
            try:
                found: Any = outcome(seed, memory)
            except Exception as error:  # of minidl's own
                memory.stop()
                found = f"{type(error).__name__}: {error}"
            told = found if isinstance(found, str) else ""
            alike = found == expected if told or isinstance(expected, str) else same(expected, found)
            yield Run(seed, how, alike, memory.report().replayed_calls, told)


def main(words: list[str] | None = None) -> int:
    """Run a campaign; 1 if a bit differs, or a planted mistake goes unseen."""
    from torch_mutants import MUTANTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--mutant", choices=list(MUTANTS))
    options = parser.parse_args(words)
    warnings.simplefilter("ignore")
    began, programs, differing = time.perf_counter(), 0, 0
    with MUTANTS[options.mutant]() if options.mutant else contextlib.nullcontext():
        for run in runs(range(options.seed, options.seed + options.count)):
            programs = run.seed - options.seed + 1
            if not run.same:
                differing += 1
                print(run, flush=True)
                if options.mutant:
                    break
            if run.how == HOWS[-1]:
                if programs % PROGRESS == 0:
                    print(f"{programs} programs, {time.perf_counter() - began:.0f} s", flush=True)
                if time.perf_counter() - began > 60 * options.minutes:
                    break
    print(f"{programs} programs from seed {options.seed} on, {differing} runs that differ, "
          f"{time.process_time():.0f} s of processor, {time.perf_counter() - began:.0f} s")
    return int(bool(differing) != bool(options.mutant))


if __name__ == "__main__":
    sys.exit(main())
