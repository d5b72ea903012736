"""Training steps on the CPU beside PyTorch's, and the same steps in half of their memory.

    python -m bench.cpu_vs_torch [--cases resnet18,...] [--rounds 9] [--out bench/results/cpu.md]
    python -m bench.cpu_vs_torch --timeline FILE.png [--cases resnet18]

Each contender is a process of its own, so that no thread pool disturbs another, and they take turns: one step each,
round after round, while the others sleep. So other work on the machine disturbs all alike. Ratios are medians of the
rounds' ratios.

    minidl      unmanaged: all in its arena
    torch       PyTorch eager as installed
    torch warm  the same with an allocator that gives nothing back to the system: no page faults on large tensors
    managed     minidl with half of the unmanaged peak, under a plan, after some iterations of settling; where a single
                operation needs more than half, with what that needs
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cpu_cases import BATCH, CASES, PLANS, Case, half_of_peak, runtime_for, training_step
from bench.timeline import draw_step
from minidl.runtime.stats import Stats

ROOT = Path(__file__).resolve().parent.parent
THREADS = 2
WARM_STEPS = 3
SETTLING = {"auto": 5 + PLANS, "capuchin": 20}  # iterations until plans have settled
WARM_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 28)}


@dataclass(frozen=True)
class Row:
    """The rounds of one case: seconds by contender, in the order of the rounds, and the last counters."""

    case: Case
    seconds: dict[str, list[float]]
    unmanaged: dict[str, Any]
    managed: dict[str, Any]


class Contender:
    """A child process that carries out one step whenever it is told to."""

    def __init__(self, kind: str, case: Case, batch: int, *flags: str,
                 environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "bench.cpu_vs_torch", "--contender", kind, "--cases", case.name, "--batch",
                   str(batch), *flags]
        threads = {name: str(THREADS) for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **threads, **(environment or {})},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._answer()

    def step(self) -> dict[str, Any]:
        """Carry out one step; return its seconds and, for minidl, the runtime's counters."""
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the child process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a contender ended early")
        answer: dict[str, Any] = json.loads(line)
        return answer


# The contenders' side --------------------------------------------------------------------------------------------
def serve(step: Callable[[], float], counters: Callable[[], dict[str, Any]]) -> None:
    """Print that warming up has ended, then carry out one step for each line that is read."""
    print(json.dumps(counters()), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "loss": loss, **counters()}), flush=True)


def serve_torch(case: Case, batch: int) -> None:
    """Be the child process that trains in PyTorch."""
    import torch

    from bench.torch_cases import training_step as torch_step

    torch.set_num_threads(THREADS)
    step = torch_step(case, batch)
    for _ in range(WARM_STEPS):
        step()
    serve(step, dict)


def serve_minidl(case: Case, batch: int, budget_bytes: int | None, policy: str) -> None:
    """Be the child process that trains in minidl; it tells that it is ready when its plan has settled."""
    with runtime_for(budget_bytes, policy) as runtime:
        step = training_step(runtime, case, batch)
        for _ in range(WARM_STEPS if budget_bytes is None else SETTLING[policy]):
            step()
        half = half_of_peak(runtime, step)
        before = [runtime.stats()]

        def counters() -> dict[str, Any]:
            now: Stats = runtime.stats()
            grown, before[0] = now.since(before[0]), now
            return {"half_bytes": half, "peak_bytes": grown.peak_bytes, "budget_bytes": grown.budget_bytes,
                    "stall_seconds": grown.stall_seconds, "recompute_seconds": grown.recompute_seconds,
                    "out_bytes": grown.swapped_out_bytes, "in_bytes": grown.swapped_in_bytes,
                    "recomputed_bytes": grown.recomputed_bytes, "moved_bytes": grown.moved_bytes}
        serve(step, counters)


# The table -------------------------------------------------------------------------------------------------------
def compete(case: Case, batch: int, rounds: int, policy: str) -> Row:
    """Run all contenders of a case in turns; return their seconds, round by round."""
    contenders = {"minidl": Contender("minidl", case, batch), "torch": Contender("torch", case, batch),
                  "torch warm": Contender("torch", case, batch, environment=WARM_HEAP)}
    half = contenders["minidl"].ready["half_bytes"]
    contenders["managed"] = Contender("minidl", case, batch, "--budget", str(half), "--policy", policy)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    last: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        names = list(contenders)
        for name in names[number % len(names):] + names[:number % len(names)]:
            last[name] = contenders[name].step()
            seconds[name].append(last[name]["seconds"])
    for contender in contenders.values():
        contender.close()
    return Row(case, seconds, last["minidl"], last["managed"])


def ratio(row: Row, slow: str, fast: str) -> float:
    """Return how many times as fast ``fast`` is as ``slow``: the median of the rounds' ratios."""
    return median(a / b for a, b in zip(row.seconds[slow], row.seconds[fast], strict=True))


def table(rows: list[Row], batch: int, policy: str) -> str:
    """Return the results as a table in Markdown."""
    import torch

    lines = [
        "# Training steps on the CPU\n",
        f"Made by `python -m bench.cpu_vs_torch`: batch {batch}, float32, {THREADS} threads, PyTorch "
        f"{torch.__version__}. Seconds a step are medians; ratios are medians of the rounds' ratios (above 1: minidl "
        "is faster). \"Warm\": PyTorch with a heap that gives nothing back to the system.\n",
        "| network | input | minidl s | torch s | torch warm s | torch / minidl | torch warm / minidl |",
        "|---|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        s = {name: median(values) for name, values in row.seconds.items()}
        lines.append(f"| {row.case.name} | {row.case.size} | {s['minidl']:.3f} | {s['torch']:.3f} | "
                     f"{s['torch warm']:.3f} | {ratio(row, 'torch', 'minidl'):.2f} | "
                     f"{ratio(row, 'torch warm', 'minidl'):.2f} |")
    lines += [
        f"\nThe same steps in half of the memory (or in what its largest operation needs) under `{policy}`:\n",
        "| network | unmanaged peak MB | budget MB | managed s | share of the unmanaged speed | stall s | "
        "recomputing s | out MB | in MB | recomputed MB | slid MB |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        m = row.managed
        lines.append(
            f"| {row.case.name} | {row.unmanaged['peak_bytes'] / 1e6:.0f} | "
            f"{m['budget_bytes'] / 1e6:.0f} | {median(row.seconds['managed']):.3f} | "
            f"{ratio(row, 'minidl', 'managed'):.1%} | {m['stall_seconds']:.3f} | {m['recompute_seconds']:.3f} | "
            f"{m['out_bytes'] / 1e6:.0f} | {m['in_bytes'] / 1e6:.0f} | {m['recomputed_bytes'] / 1e6:.0f} | "
            f"{m['moved_bytes'] / 1e6:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"(default: {','.join(CASES)})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"(default: {BATCH})")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--policy", choices=SETTLING, default="auto", help="of the managed column (default: auto)")
    parser.add_argument("--out", metavar="FILE.md", help="write the table there too")
    parser.add_argument("--timeline", metavar="FILE.png", help="draw a managed step of the first case instead")
    parser.add_argument("--contender", choices=("minidl", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = [CASES[name] for name in args.cases.split(",")]
    if args.contender == "torch":
        serve_torch(cases[0], args.batch)
    elif args.contender == "minidl":
        serve_minidl(cases[0], args.batch, args.budget, args.policy)
    elif args.timeline:
        draw_step(cases[0], args.batch, args.policy, SETTLING[args.policy], args.timeline)
    else:
        rows = []
        for case in cases:
            rows.append(compete(case, args.batch, args.rounds, args.policy))
            print(table(rows, args.batch, args.policy), flush=True)
        if args.out:
            Path(args.out).write_text(table(rows, args.batch, args.policy), encoding="utf-8")


if __name__ == "__main__":
    main()
