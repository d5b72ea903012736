"""Bits and budgets of PyTorch trainings under ``minidl.torch``: 24 networks by policy, kind of plan and budget.

    python -m bench.torch_bits [--networks unet gpt2 ...] [--policies auto capuchin] [--out FILE.csv]

Each cell trains a network for some steps without ``minidl.torch`` and for as many under it, from the same seed, and
compares losses, parameters, buffers, the optimizer's state and the generator bit by bit. Every step is metered
(``minidl.torch.Meter``): none may take more than the budget, which is a share of the unmanaged peak, or the floor where
that is more.

    swap       nothing is computed again
    both       a copied byte takes 30 ns, about as long as computing takes for it
    recompute  a copied byte takes 1 us: what can be computed again is

Rows that the file has already are not made again. Ends with 1 if any bit differs or any budget is broken.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

import minidl.torch
from bench.support.torch_programs import SEED, Program, same
from bench.support.torch_zoo import ZOO
from minidl.plan.costs import Costs
from minidl.torch.backends import Immediate, Traffic
from minidl.torch.course import Phase

STEPS = 5  # one away, one measured, three planned
ENDLESS = 1 << 50
SHARES = {"70%": 0.7, "50%": 0.5, "floor": 0.0}
SECONDS_PER_BYTE = {"swap": None, "both": 3e-8, "recompute": 1e-6}  # of a copy; None: as it is
POLICIES = ("capuchin", "auto")
OUT = Path("bench/results/torch_bits.csv")


@dataclass(frozen=True)
class Cell:
    """A training under a budget, beside the one without. Bytes are those of dispatched storages.

    first_peak_bytes  the most in the first two steps, which follow no plan; peak_bytes: in those that follow one.
    bits              ``same``, or what differs; held: whether no step took more than the budget.
    """

    network: str
    policy: str
    how: str
    share: str
    unmanaged_bytes: int
    floor_bytes: int
    budget_bytes: int
    first_peak_bytes: int
    peak_bytes: int
    swapped_bytes: int
    replayed_calls: int
    diverged: int
    bits: str
    held: bool
    cpu_s: float

    @property
    def right(self) -> bool:
        """True if the bits are the same and no step took more than the budget."""
        return self.bits == "same" and self.held and not self.diverged


class _Priced(Traffic):
    """A link by which copies are planned as if a byte took ``seconds``, whatever it takes."""

    def __init__(self, seconds_per_byte: float) -> None:
        super().__init__()
        self.seconds_per_byte = seconds_per_byte

    def costs(self, contention: float) -> Costs:
        """Return the costs of the link that plans are made with."""
        return Costs(self.seconds_per_byte, self.seconds_per_byte, 0.0, contention)


def manager(budget: int, policy: str, how: str) -> minidl.torch.managed:
    """Make the ``minidl.torch.managed`` of a cell."""
    backend = Immediate(ENDLESS)
    seconds = SECONDS_PER_BYTE[how]
    if seconds is not None:
        backend.traffic = _Priced(seconds)
    return minidl.torch.managed(budget, policy=policy, recompute=how != "swap", backend=backend)


@dataclass
class Trained:
    """A training that has ended: all values that it computed, by kind, and the peak of each step."""

    found: dict[str, list[torch.Tensor]]
    peaks: list[int]

    def differs(self, other: Trained) -> str:
        """Return the kinds of values in which two trainings differ, as text; ``same`` if they differ in none."""
        kinds = [kind for kind in self.found if not same(self.found[kind], other.found[kind])]
        return ", ".join(kinds) or "same"


def trained(name: str, memory: minidl.torch.managed | None = None, steps: int = STEPS) -> Trained:
    """Train a network of the zoo, each step under a meter."""
    torch.manual_seed(SEED)
    program = ZOO[name]()
    losses, peaks = [], []
    if memory is not None:
        memory.start()
    try:
        for _ in range(steps):
            with minidl.torch.Meter(program.lasting()) as meter:
                losses.append(program.step())
            peaks.append(meter.peak)
    finally:
        if memory is not None:
            memory.stop()
    return Trained({"losses": losses, **_kinds(program)}, peaks)


def _kinds(program: Program) -> dict[str, list[torch.Tensor]]:
    state = [v for each in program.optimizer.state.values() for v in each.values() if isinstance(v, torch.Tensor)]
    gradients = [p.grad for p in program.network.parameters() if p.grad is not None]
    return {"parameters": [p.detach() for p in program.network.parameters()], "gradients": gradients,
            "buffers": list(program.network.buffers()), "states": state, "generator": [torch.get_rng_state()]}


def cells(name: str, wanted: Iterable[tuple[str, str, str]]) -> Iterable[Cell]:
    """Yield a network's cells. wanted: policy, kind of plan and share of the peak of each."""
    plain = trained(name)
    known = manager(ENDLESS, "capuchin", "swap")
    trained(name, known, 2)
    report = known.report()
    for policy, how, share in wanted:
        budget = max(report.floor_bytes, int(SHARES[share] * report.unmanaged_bytes))
        memory = manager(budget, policy, how)
        began = time.process_time()
        it = trained(name, memory)
        now = memory.report()
        guided = now.steps.get(Phase.GUIDED, 0)
        yield Cell(name, policy, how, share, report.unmanaged_bytes, report.floor_bytes, budget, max(it.peaks[:2]),
                   max(it.peaks[2:]), now.out_bytes, now.replayed_calls, now.diverged + (guided != STEPS - 2),
                   plain.differs(it), max(it.peaks) <= budget, round(time.process_time() - began, 2))


def main(arguments: list[str] | None = None) -> int:
    """Make the cells that the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(ZOO), choices=list(ZOO), metavar="NAME")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries
    header = [field.name for field in fields(Cell)]
    there = list(csv.DictReader(options.out.open())) if options.out.exists() else []
    made = {(row["network"], row["policy"], row["how"], row["share"]) for row in there}
    wrong = sum(row["bits"] != "same" or row["held"] != "True" or row["diverged"] != "0" for row in there)
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, header, lineterminator="\n")
        if not there:
            writer.writeheader()
        for name in options.networks:
            wanted = [key for policy in options.policies for how in SECONDS_PER_BYTE for share in SHARES
                      if (name, *(key := (policy, how, share))) not in made]
            for cell in cells(name, wanted) if wanted else ():
                writer.writerow(asdict(cell))
                file.flush()
                made.add((cell.network, cell.policy, cell.how, cell.share))
                wrong += not cell.right
                if not cell.right:
                    print(f"wrong: {cell}", flush=True)
    print(f"{len(made)} cells, {wrong} of them wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
