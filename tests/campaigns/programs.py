"""Random whole programs, as many as wanted: ``python -m tests.campaigns.programs --count N --seed S``.

Each runs unmanaged, then under policies, budgets from the floor to the peak, with much, little and no host memory, with
and without poison (``--settings`` of these, 0: all), now and then beside another program in another runtime; and in
PyTorch where that is installed. Bits must be those of the unmanaged run. A program that fails is shrunk and printed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def run(count: int, *, seed: int = 0, settings: int = 4, peer: bool = True) -> tuple[int, int]:
    """Check so many programs, from the one of ``seed`` on; returns how many runs that were, and how many failed."""
    if str(SUPPORT) not in sys.path:  # a test has it there already
        sys.path.insert(0, str(SUPPORT))
    from program_runs import check
    from whole_programs import program
    torch = _torch() if peer else None
    runs = failed = 0
    start = time.perf_counter()
    for number in range(seed, seed + count):
        try:
            runs += check(program(number), settings, peer=torch)
        except Exception:
            failed += 1
            traceback.print_exc()
        if (number - seed + 1) % 1000 == 0:
            print(f"{number - seed + 1} programs, {runs} runs, {failed} failed, {time.perf_counter() - start:.0f} s",
                  flush=True)
    return runs, failed


def _torch() -> object | None:
    try:
        import torch
    except ImportError:
        return None
    return torch


def main() -> int:
    """The command; 1 if a program failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many programs (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's number (default: 0)")
    parser.add_argument("--settings", type=int, default=4, help="runs of each; 0: every one (default: 4)")
    parser.add_argument("--no-peer", action="store_true", help="do not compare with PyTorch")
    given = parser.parse_args()
    runs, failed = run(given.count, seed=given.seed, settings=given.settings, peer=not given.no_peer)
    print(f"{given.count} programs from {given.seed} on, {runs} managed and unmanaged runs: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
