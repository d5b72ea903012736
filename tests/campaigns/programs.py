"""Random whole programs, as many as wanted: ``python -m tests.campaigns.programs --count N --seed S``.

Each runs unmanaged, then under policies, budgets from the floor to the peak, with much, little and no host memory, with
and without poison, on both clocks (``--settings`` of these, 0: all), now and then with a second run of it in another
runtime in the middle. Bits must be those of the unmanaged run. ``--peer`` runs each in PyTorch instead, and compares
numbers. A program that fails is shrunk and printed. It ends after ``--count`` programs or ``--minutes``.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
PROGRESS = 1000  # programs between two lines of progress


@dataclass
class Figures:
    """How many programs were tried, how many runs that were, how many failed; whole: compared to their end."""

    programs: int = 0
    runs: int = 0
    failed: int = 0
    whole: int = 0

    def __str__(self) -> str:
        return f"{self.programs} programs, {self.runs} runs, {self.whole} to their end, {self.failed} failed"


def run(count: int, *, seed: int = 0, settings: int = 4, peer: bool = False, seconds: float = inf) -> Figures:
    """Check so many programs, from the one of ``seed`` on, or fewer if the time is over before."""
    if str(SUPPORT) not in sys.path:  # a test has it there already
        sys.path.insert(0, str(SUPPORT))
    check = _with_peer() if peer else _managed(settings)
    found, start = Figures(), time.perf_counter()
    for number in range(seed, seed + count):
        if time.perf_counter() - start > seconds:
            break
        found.programs += 1
        try:
            runs, whole = check(number)
            found.runs, found.whole = found.runs + runs, found.whole + whole
        except Exception:
            found.failed += 1
            traceback.print_exc()
        if found.programs % PROGRESS == 0:
            print(f"{found}, {time.perf_counter() - start:.0f} s", flush=True)
    return found


def _managed(settings: int) -> Callable[[int], tuple[int, bool]]:
    """Runs the program of a seed unmanaged and managed; returns how many runs that were, and that all was compared."""
    from program_runs import check
    from whole_programs import program
    return lambda seed: (check(program(seed), settings), True)


def _with_peer() -> Callable[[int], tuple[int, bool]]:
    """Runs the program of a seed here and in PyTorch; returns as ``_managed``."""
    import torch
    from program_peer import check_with_peer
    from whole_programs import program
    torch.set_num_threads(1)
    return lambda seed: (2, check_with_peer(program(seed), torch))


def main() -> int:
    """The command; 1 if a program failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many programs (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's number (default: 0)")
    parser.add_argument("--settings", type=int, default=4, help="managed runs of each; 0: every one (default: 4)")
    parser.add_argument("--peer", action="store_true", help="compare with PyTorch instead")
    parser.add_argument("--minutes", type=float, default=inf, help="end after so many, however many programs that were")
    given = parser.parse_args()
    found = run(given.count, seed=given.seed, settings=given.settings, peer=given.peer, seconds=60 * given.minutes)
    print(f"from {given.seed} on: {found}")
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
