"""MO-SOS beside STR and Checkmate with automatic algorithms, as its authors compare them: their figures 4 and 5."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from time import perf_counter, process_time
from typing import Any

from bench.papers.page import Content
from minidl.lab import cell
from minidl.lab.cell import Machine
from minidl.lab.row import CellResult
from minidl.lab.training_step import trace_of
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Proposal
from minidl.plan.trace import Trace
from minidl.policies.literature.ilp.graph import Graph
from minidl.policies.literature.ilp.policy import Checkmate, OperatorSelection, SolvedSchedule, SwapDominated

P40 = Machine("p40")
NETWORKS = (("vgg19", 144, 227), ("unet", 120, 256))
RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4)
BLOCKS, STEPS = 40, 6
PUBLISHED = {"str-ilp": 0.0436, "checkmate": 0.1353}  # less time than these, on average


class Remembering(Checkmate):
    """A policy that solves each program once in a cell, and keeps how far its solver came."""

    solved: dict[tuple[tuple[str, Any], ...], list[SolvedSchedule]]
    remark = ""

    def _solved(self, stages: Graph, costs: Costs, budget: int, **how: Any) -> Iterator[SolvedSchedule]:
        key = tuple(sorted(how.items()))
        if key not in self.solved:
            self.solved[key] = list(super()._solved(stages, costs, budget, **how))
        yield from self.solved[key]

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the system's plan, solved now or kept from before."""
        found = super().plan(trace, costs, limits)
        self.remark = found.remark.rpartition(", ")[2]
        return found


class RememberingSwaps(Remembering, SwapDominated):
    """The policy of STR, which solves each program once in a cell."""


class RememberingAlgorithms(Remembering, OperatorSelection):
    """The policy of MO-SOS, which solves each program once in a cell."""


SYSTEMS = {"checkmate": Remembering, "str-ilp": RememberingSwaps, "mo-sos": RememberingAlgorithms}


def selection(content: Content, quick: bool) -> None:
    """Fill the page of Figure 4, a step's time by memory, and Figure 5, the parts of which that time consists."""
    content.say("MO-SOS chooses by one integer program which tensors leave, how, and which algorithms the calls use. "
                "Training steps on a simulated P40 in shares of their unmanaged peak: VGG19 with images of 227x227 at "
                "a batch of 144, U-Net with 256x256 at 120. The cells have milliseconds of a step as the engine runs "
                f"it. Each system solves an integer program, with {BLOCKS} blocks of calls as its stages, for at most "
                f"{content.solver_s:g} s. In brackets after the milliseconds stands how far its solution may still be "
                "from the optimum (the solver's gap), or \"on demand\": no plan was found in time, or there is none. "
                "`checkmate` recomputes, `str-ilp` (STR, IPDPS 2022) recomputes and swaps, and `mo-sos` also chooses "
                "algorithms. In the second table *waits* is time that the step waits for copies.")
    clock, cpu = perf_counter(), process_time()
    less: dict[str, list[float]] = {name: [] for name in PUBLISHED}
    gained: list[tuple[float, str]] = []  # seconds less than counted, and where
    for model, batch, side in NETWORKS[:1] if quick else NETWORKS:
        trace = trace_of(model, 2 if quick else batch, device="sim:p40", side=side)
        rows, parts = [], []
        for ratio in RATIOS[:1] if quick else RATIOS:
            found = _cells(f"{model}:{batch}", trace, ratio, content.solver_s)
            mine = found["mo-sos"][0]
            for name, values in less.items():
                theirs = found[name][0]
                if mine.settled_s and theirs.settled_s and None not in (mine.predicted_s, theirs.predicted_s):
                    values.append(1 - mine.settled_s / theirs.settled_s)
            rows.append((f"{ratio:g} ({format_bytes(mine.budget_bytes)})", f"{1e3 * mine.unmanaged_s:.0f}",
                         *(_shown(row, remark) for row, remark in found.values())))
            parts += [(f"{ratio:g}", f"`{name}`", *_made_of(row)) for name, (row, _) in found.items()]
            gained += [(row.predicted_s - row.settled_s, f"{model} at {ratio:g}: {1e3 * row.settled_s:.0f} instead of "
                        f"{1e3 * row.predicted_s:.0f} ms for `{name}`") for name, (row, _) in found.items()
                       if row.settled_s is not None and row.predicted_s is not None]
        content.say(f"## Figure 4: {model} at {batch}")
        content.table(("memory", "unmanaged", *(f"`{name}`" for name in SYSTEMS)), rows)
        content.say(f"## Figure 5: what a step of {model} is made of")
        content.table(("memory", "policy", "calls, each once", "computed again", "waits", "copied out"), parts)
    for name, values in less.items():
        if values:
            content.say(f"On average `mo-sos` takes {mean(values):.2%} less time than `{name}` (its authors: "
                        f"{PUBLISHED[name]:.2%}), over {len(values)} cells that both have plans for.")
    content.say("While the page was made, the command had the processor for "
                f"{(process_time() - cpu) / (perf_counter() - clock):.0%} of the time.")
    content.say("**Where they differ.** VGG19: here outputs are written over inputs that are used for the last "
                "time, so the unmanaged peak is lower, and in half of that peak no integer program has a plan, because "
                "the largest of the 40 blocks of calls needs more. "
                "In this model of the GPU the fused Winograd convolution takes no workspace and is the fastest for "
                "3 x 3 filters, so that there is little to choose. The authors measured cuDNN 8.0.5, whose fastest "
                "algorithm takes up to 2 GB. They solved the programs with Gurobi and without a time limit. Here "
                "HiGHS is stopped by the clock, which also counts the time that a busy machine spends on other "
                "work. Where it has not proven an optimum (see the brackets), `str-ilp` and `mo-sos` follow the "
                "best solution that they have, if need be that of `checkmate`. By the predictions of the programs "
                "`str-ilp` is never slower than `checkmate`, nor `mo-sos` than `str-ilp`. The engine may take less "
                f"time than predicted, as it keeps by-products of replays{_most_gained(gained)}.")


def _cells(name: str, trace: Trace, ratio: float, seconds: float) -> dict[str, tuple[CellResult, str]]:
    """Return each system's row of a cell, and how far its solver came."""
    solved: dict[tuple[tuple[str, Any], ...], list[SolvedSchedule]] = {}
    found = {}
    for system, kind in SYSTEMS.items():
        policy = kind(seconds=seconds, most_nodes=BLOCKS)
        policy.solved = solved
        row = cell.run(name, trace, P40, policy, ratio, steps=STEPS)
        found[system] = row, policy.remark
    return found


def _most_gained(gained: list[tuple[float, str]]) -> str:
    """Return in brackets the place of the largest gain, from pairs (seconds, place); empty text if there is no gain."""
    seconds, where = max(gained, default=(0.0, ""))
    return f" ({where})" if seconds > 0 else ""


def _shown(row: CellResult, remark: str) -> str:
    if row.settled_s is None:
        return row.status.partition(":")[0]
    return f"{1e3 * row.settled_s:.0f} ({'on demand' if row.predicted_s is None else remark or 'keeps all'})"


def _made_of(row: CellResult) -> tuple[str, ...]:
    if row.settled_s is None:
        return ("-",) * 4
    again, waits = row.recompute_seconds or 0.0, row.stall_seconds or 0.0
    return (f"{1e3 * (row.settled_s - again - waits):.0f} ms", f"{1e3 * again:.0f} ms", f"{1e3 * waits:.0f} ms",
            format_bytes(row.out_bytes or 0))
