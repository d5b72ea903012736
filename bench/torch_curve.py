"""Speed and peak of a Llama-like training by budget: ``minidl.torch.managed`` beside PyTorch's own memory budget.

    python -m bench.torch_curve [--rounds 9] [--backend inductor] [--ways managed compiled]

    eager     transformers' LlamaForCausalLM with AdamW, unmanaged
    managed   the same under ``minidl.torch.managed``, at budgets from its floor to its unmanaged peak
    compiled  the same under ``torch.compile``, at several values of ``activation_memory_budget``

PyTorch's budget is a ratio: 1 keeps the activations that the fastest program keeps, 0 those that the smallest keeps. It
applies to compiled programs alone. All contenders are in one process, with one thread, and take turns: a step each,
round after round. Seconds are those of the processor; each is divided by those of the eager step of its round, and the
table has the quartiles of these ratios. Peaks are those of PyTorch's allocator in one further step, as its profiler
sees them, so buffers inside of kernels count. Host copies come from NumPy's allocator and do not count.
``predicted_of_eager`` is what ``memory.fit()`` says of one recorded step. ``bits`` compares losses and parameters with
those of the eager training after as many steps.

Needs transformers and matplotlib; the default backend needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import quantiles
from types import FunctionType
from typing import Any

import numpy as np
import torch

import minidl.torch
from minidl.outside.units import format_bytes
from minidl.torch.backends import HostPool, Immediate
from minidl.torch.budget import Fit

WORDS, SEQUENCES, LENGTH = 512, 4, 256
SHAPE: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6,
    "num_key_value_heads": 2, "use_cache": False}
STEPS = 8  # of the way from the floor to the unmanaged peak
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
SETTLING = 4  # steps before any is timed: one away, one measured, two planned
ENDLESS = 1 << 50
WAYS = ["managed", "compiled"]


@dataclass(frozen=True)
class Row:
    """The result of one contender; ratios are to the eager step: quartiles over the rounds, and the prediction.

    asked: budget bytes over the eager peak, or PyTorch's ratio; 1 for eager. held: True if the peak is within the
    budget in bytes, if there is one.
    """

    way: str
    asked: float
    budget_bytes: int | None
    peak_bytes: int
    of_eager: float
    low: float
    high: float
    predicted_of_eager: float | None
    bits: str
    held: bool | None


class _Apart(Immediate):
    """Copies to host memory that PyTorch's allocator does not know, so that its peak is that of the device."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        self.host = HostPool(ENDLESS, lambda nbytes: torch.from_numpy(np.empty(nbytes, np.uint8)).untyped_storage())


@dataclass
class Contender:
    """One training. around: what each step is carried out in; memory: what manages it, if anything does."""

    way: str
    asked: float
    memory: Any = None
    ratio: float | None = None
    backend: str = "inductor"
    seconds: list[float] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        self.network: Any = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **SHAPE)).train()
        self.optimizer = torch.optim.AdamW(self.network.parameters(), 1e-3)
        self.tokens = torch.randint(0, WORDS, (SEQUENCES, LENGTH))
        self.loss: Callable[[], torch.Tensor] = self._loss
        if self.ratio is not None:
            # A copy of the code: the compiler would use again what it has compiled for the code of another ratio.
            own = FunctionType(Contender._loss.__code__.replace(), globals())
            self.loss = torch.compile(partial(own, self), backend=self.backend, dynamic=False)

    def _loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.network(input_ids=self.tokens, labels=self.tokens).loss
        return loss

    def step(self, *, timed: bool = False) -> None:
        """One step. Its time has no copies of optimizer state that only the change of turns takes."""
        gc.collect()
        with self._managed():
            began = time.process_time()
            self._train()
            if timed:
                self.seconds.append(time.process_time() - began)

    def _managed(self) -> Any:
        return self.memory if self.memory is not None else contextlib.nullcontext()

    def _train(self) -> None:
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())

    def settle(self) -> None:
        """Steps before the first timed one. A compiled network is compiled for its ratio here."""
        from torch._functorch import config

        ratio = 1.0 if self.ratio is None else self.ratio
        with config.patch(activation_memory_budget=ratio):
            for _ in range(SETTLING):
                self.step()

    def peak(self) -> int:
        """The most bytes of PyTorch's allocator on the device in one step."""
        gc.collect()
        with self._managed():
            before = self._lasting_bytes()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                        profile_memory=True) as profile:
                self._train()
        kineto: Any = profile.profiler
        events = sorted((e.start_ns(), n, e.nbytes()) for n, e in enumerate(kineto.kineto_results.events())
                        if e.name() == "[memory]")
        return before + int(max(np.cumsum([nbytes for _, _, nbytes in events])))

    def _lasting_bytes(self) -> int:
        """The bytes that are on the device between steps. It holds no tensor when it has returned."""
        waits = self.memory.states.waits if self.memory is not None else lambda tensor: False
        state = [v for each in self.optimizer.state.values() for v in each.values() if not waits(v)]
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in (
            *self.network.parameters(), *self.network.buffers(), *state, self.tokens, *self.losses)}.values())

    def bits(self) -> list[torch.Tensor]:
        """Return copies of all values that training has computed."""
        return [*self.losses, *(t.detach() for t in self.network.state_dict().values())]


def fitted() -> Fit:
    """The floor, the peak, and predictions for budgets between, from one recorded step."""
    known = Contender("managed", 1.0, memory=minidl.torch.managed(ENDLESS))
    for _ in range(SETTLING - 1):
        known.step()
    fit: Fit = known.memory.fit(shares=[n / STEPS for n in range(STEPS, -1, -1)])
    return fit


def measured(rounds: int, ways: list[str], backend: str, tell: Callable[[str], None]) -> list[Row]:
    """Train the contenders of some ways in turns with the unmanaged eager one; return a row for each."""
    contenders = [Contender("eager", 1.0)]
    budgets: list[int | None] = [None]
    predicted: list[float | None] = [None]
    if "managed" in ways:
        fit = fitted()
        tell(str(fit))
        budgets += [point.budget_bytes for point in fit]
        predicted += [point.slower for point in fit]
        contenders += [Contender("managed", point.budget_bytes / fit.unmanaged_bytes,
                                 memory=minidl.torch.managed(point.budget_bytes, backend=_Apart())) for point in fit]
    if "compiled" in ways:
        contenders += [Contender("compiled", ratio, ratio=ratio, backend=backend) for ratio in RATIOS]
        budgets += [None] * len(RATIOS)
        predicted += [None] * len(RATIOS)
    for each in contenders:
        began = time.perf_counter()
        each.settle()
        tell(f"{each.way} {each.asked:.2f}: ready after {time.perf_counter() - began:.0f} s")
    for _ in range(rounds):
        for each in contenders:
            each.step(timed=True)
    rows, eager = [], contenders[0]
    for each, budget, slower in zip(contenders, budgets, predicted, strict=True):
        low, middle, high = quantiles([a / b for a, b in zip(each.seconds, eager.seconds, strict=True)], n=4)
        rows.append((each.peak(), budget, slower, low, middle, high))
    plain = eager.bits()
    return [Row(each.way, round(each.asked, 4), budget, peak, round(middle, 4), round(low, 4), round(high, 4),
                None if slower is None else round(slower, 4),
                "same" if all(a.equal(b) for a, b in zip(each.bits(), plain, strict=True)) else "others",
                None if budget is None else peak <= budget)
            for each, (peak, budget, slower, low, middle, high) in zip(contenders, rows, strict=True)]


def rises(rows: Iterable[Row], value: Callable[[Row], float], *, by: Callable[[Row], float]) -> float:
    """Return by how much at most a value rises from one row to another with a larger ``by``."""
    least, most = float("inf"), 0.0
    for row in sorted(rows, key=by):
        least = min(least, value(row))
        most = max(most, value(row) - least)
    return most


def summary(rows: list[Row]) -> str:
    """Return lines of text on the table's main results."""
    ways = {way: [row for row in rows if row.way == way] for way in ("eager", "managed", "compiled")}
    peak, managed, compiled = ways["eager"][0].peak_bytes, ways["managed"], ways["compiled"]
    spread = max(row.high - row.low for row in managed)
    falls = rises(compiled, lambda row: -row.peak_bytes / peak, by=lambda row: row.asked)
    return "\n".join([
        f"eager peak {format_bytes(peak)}",
        f"managed: {sum(bool(row.held) for row in managed)} of {len(managed)} budgets held, "
        f"{sum(row.bits == 'same' for row in managed)} with the bits of the eager training",
        f"managed: with a larger budget a step is slower by x{rises(managed, lambda row: row.of_eager, by=_asked):.3f} "
        f"at most, predicted x{rises(managed, lambda row: row.predicted_of_eager or 0.0, by=_asked):.3f}; "
        f"quartiles of one budget are up to x{spread:.3f} apart",
        f"compiled: with a larger ratio the peak is smaller by {falls:.1%} of the eager peak at most",
    ])


def _asked(row: Row) -> float:
    return row.asked


# The table and the picture --------------------------------------------------------------------------------------------
def write(path: Path, rows: list[Row]) -> None:
    """Write the rows as a table."""
    with path.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, [f.name for f in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def read(path: Path) -> list[Row]:
    """Read a table that ``write`` has written; no rows if there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as source:
        return [Row(row["way"], float(row["asked"]), int(row["budget_bytes"]) if row["budget_bytes"] else None,
                    int(row["peak_bytes"]), float(row["of_eager"]), float(row["low"]), float(row["high"]),
                    float(row["predicted_of_eager"]) if row["predicted_of_eager"] else None, row["bits"],
                    row["held"] == "True" if row["held"] else None) for row in csv.DictReader(source)]


def draw(rows: list[Row], out: Path) -> None:
    """Draw two panels: asked-for memory beside the peak, and the peak beside the time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    peak = next(row.peak_bytes for row in rows if row.way == "eager")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.4))
    for way, label, colour in (("managed", "minidl.torch.managed", "C0"),
                               ("compiled", "activation_memory_budget, compiled", "C1")):
        its = sorted((row for row in rows if row.way == way), key=_asked)
        peaks = [row.peak_bytes / peak for row in its]
        left.plot([row.asked for row in its], peaks, "o-", color=colour, markersize=3.5, linewidth=1, label=label)
        middle = [row.of_eager for row in its]
        right.errorbar(peaks, middle, yerr=[[max(0.0, row.of_eager - row.low) for row in its],
                                            [max(0.0, row.high - row.of_eager) for row in its]],
                       fmt="o-", color=colour, markersize=3.5, linewidth=1, elinewidth=0.7, label=label)
        if way == "managed":
            right.plot(peaks, [row.predicted_of_eager for row in its], ":", color=colour, linewidth=1,
                       label="the same, predicted")
    left.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, zorder=0)
    left.set_xlabel("asked: budget / eager peak, or PyTorch's ratio", fontsize=8)
    left.set_ylabel("peak / eager peak", fontsize=8)
    right.axhline(1, color="0.7", linewidth=0.8, zorder=0)
    right.set_xlabel("peak / eager peak", fontsize=8)
    right.set_ylabel("seconds of a step / eager", fontsize=8)
    for axes in (left, right):
        axes.set_xlim(0, 1.05)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: inductor)")
    parser.add_argument("--csv", type=Path, default=Path("bench/results/torch_curve.csv"))
    parser.add_argument("--picture", type=Path, default=Path("docs/torch_curve.png"))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS, metavar="WAY",
                        help="measured now, with eager; the rows of others stay (default: managed compiled)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the libraries
    torch.set_num_threads(1)
    if options.ways:
        print(f"PyTorch {torch.__version__}, {options.backend}, {options.rounds} rounds, load of the machine's "
              f"{os.cpu_count()} processors {os.getloadavg()[0]:.1f}", flush=True)
        rows = measured(options.rounds, options.ways, options.backend, lambda line: print(line, flush=True))
        kept = [row for row in read(options.csv) if row.way not in ("eager", *options.ways)]
        write(options.csv, [*rows, *kept])
    rows = read(options.csv)
    print(summary(rows))
    draw(rows, options.picture)


if __name__ == "__main__":
    main()
