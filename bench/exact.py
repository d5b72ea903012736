"""MO-SOS beside STR and Checkmate with automatic algorithms, as its authors compare them, on a simulated GPU.

    python -m bench.exact [--device sim:p40] [--seconds 60] [--nodes 40] [--ratios 0.8 0.7 ...] [--networks vgg19 unet]

Their setting: VGG19 at 227 x 227 and batch 144, U-Net at 256 x 256 and batch 120, a P40, and 0.8 to 0.4 of the memory
that the network takes if nothing leaves (Wei et al., 2024). Each integer program is solved once for all three, which
choose among the solutions that they may know. A step is run by the engine under each plan; "predicted" is what the
plan says. Cells go to stderr as they are done.
"""

import argparse
import sys
from statistics import mean
from time import perf_counter

from minidl import Runtime, models
from minidl.meta import int64
from minidl.models.unet import loss as pixel_loss
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.trace import Trace
from minidl.policies.passive import Passive
from minidl.policies.stagewise.graph import Graph, graph
from minidl.policies.stagewise.policy import (
    Checkmate,
    OperatorSelection,
    SwapDominated,
    fastest,
    to_plan_for,
)
from minidl.testing.steps import UNLIMITED

CASES = [("vgg19", 144, 227), ("unet", 120, 256)]
RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4)
STEPS = 6


class Fixed(Passive):
    """One plan, for the iterations of one trace."""

    name = "fixed"
    plans = True

    def __init__(self, proposal: Proposal, calls: int) -> None:
        self.proposal = proposal
        self.calls = calls

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        return self.proposal if len(trace.calls) == self.calls else NO_PLAN


def measured(device: str, name: str, batch: int, side: int, *, policy="none", budget: int = UNLIMITED, steps: int = 2):
    """(trace, costs, most bytes, seconds) of the last of some training steps."""
    with Runtime(device=device, policy=policy, memory_budget=budget) as runtime:
        model = models.create(name)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            before = runtime.stats()
            with runtime.iteration():
                optimizer.zero_grad()
                images = runtime.tensor(None, shape=(batch, 3, side, side))
                where = (side, side) if name == "unet" else ()
                labels = runtime.tensor(None, shape=(batch, *where), dtype=int64)
                loss = pixel_loss(model, images, labels) if where else cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                trace = runtime.trace() if policy == "none" else None
                del images, labels, loss
        stats = runtime.stats()
        return trace, runtime.device.profile.link_costs, stats.peak_bytes, stats.since(before).seconds


class Remembering(Checkmate):
    """A policy that solves no program twice in a cell."""

    solved: dict = {}

    def _solved(self, stages: Graph, costs: Costs, budget: int, **how):
        key = tuple(sorted(how.items()))
        if key not in self.solved:
            self.solved[key] = list(super()._solved(stages, costs, budget, **how))
        yield from self.solved[key]


SYSTEMS = {cls.name: type(cls.__name__, (Remembering, cls), {}) for cls in (Checkmate, SwapDominated,
                                                                           OperatorSelection)}


def cell(device: str, case: tuple[str, int, int], stages: Graph, budget: int, policy: Checkmate, costs: Costs
         ) -> tuple[float, str]:
    """Seconds of a step under a policy, and how that came."""
    limits = Limits(budget, UNLIMITED)
    proposal = fastest(stages, policy.choices(stages, costs, to_plan_for(stages, limits)), costs, limits)
    if proposal.plan.predicted_seconds is None:
        return float("nan"), "no plan"
    seconds = measured(device, *case, policy=Fixed(proposal, len(stages.trace.calls)), budget=budget, steps=STEPS)[3]
    predicted = proposal.plan.predicted_seconds
    none_is_less = predicted <= stages.seconds * (1 + 1e-6)
    gap = "optimal" if none_is_less else proposal.remark.rpartition(", ")[2]
    return seconds, f"{1e3 * seconds:.0f} ({1e3 * predicted:.0f}, {gap})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim:p40")
    parser.add_argument("--seconds", type=float, default=60.0, help="that the solver may take for each program")
    parser.add_argument("--nodes", type=int, default=40, help="blocks of calls that a trace is cut into")
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS)
    parser.add_argument("--networks", nargs="+", default=[name for name, _, _ in CASES])
    args = parser.parse_args()
    print(f"# Exact and relaxed plans\n\nMade by `python -m bench.exact --device {args.device} --seconds "
          f"{args.seconds:g} --nodes {args.nodes}`. Milliseconds of a step as the engine runs it; in brackets what "
          "the plan predicted, and how far its integer program may still be from the optimum of its blocks.\n")
    print("| network | memory | unmanaged | checkmate | str | mo-sos | less than str | less than checkmate | "
          "solved in |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    less: dict[str, list[float]] = {"str": [], "checkmate": []}
    for case in (case for case in CASES if case[0] in args.networks):
        trace, costs, most, unmanaged = measured(args.device, *case)
        stages = graph(trace, most=args.nodes)
        for budget in (int(ratio * most) for ratio in args.ratios):
            began = perf_counter()
            Remembering.solved.clear()
            policies = {name: cls(seconds=args.seconds, most_nodes=args.nodes) for name, cls in SYSTEMS.items()}
            cells = {name: cell(args.device, case, stages, budget, policy, costs) for name, policy in policies.items()}
            took = perf_counter() - began
            mine = cells["mo-sos"][0]
            saved = {policy: 1.0 - mine / cells[policy][0] for policy in less}
            for policy, share in saved.items():
                if share == share:  # not where one of the two has no plan
                    less[policy].append(share)
            row = (f"| {case[0]} {case[1]} | {budget / most:.1f} ({budget / 2**30:.1f} GiB) | {1e3 * unmanaged:.0f} | "
                   + " | ".join(cells[policy][1] for policy in SYSTEMS)
                   + f" | {100 * saved['str']:.2f}% | {100 * saved['checkmate']:.2f}% | {took:.0f} s |")
            print(row, flush=True)
            print(row, file=sys.stderr, flush=True)
    print(f"\nOn average mo-sos takes {100 * mean(less['str']):.2f}% less time than str (its authors: 4.36%) and "
          f"{100 * mean(less['checkmate']):.2f}% less than checkmate (13.53%), over {len(less['str'])} and "
          f"{len(less['checkmate'])} cells.")


if __name__ == "__main__":
    main()
