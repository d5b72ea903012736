"""`auto` against every other policy on sim:p100: shares of the unmanaged speed, by what of the unmanaged peak there is.

    python -m bench.auto [--networks resnet50:128,...] [--budgets 90,50,30] > bench/results/auto.md

A speed is that of the last of so many steps that plans have settled. Planning is in seconds of this machine's
processor.
"""

import argparse
from time import process_time

from bench.planning import Timed
from minidl import OutOfMemory, Runtime
from minidl.plan.policy import Policy
from minidl.policies import create
from minidl.testing.on_demand import step_of
from minidl.testing.steps import UNLIMITED

NETWORKS = "resnet50:128,vgg16:96,densenet121:64,bert-base:64"
BUDGETS = "95,90,80,70,60,50,40,30,20"
STEPS = {"passive": 4, "lru": 4, "recompute": 4, "dtr-swap": 4, "capuchin": 20, "capuchin-swap": 20,
         "capuchin-recompute": 8, "auto": 48}
LOST = 0.005  # a cell that `auto` loses by more is marked


def last_seconds(network: str, batch: int, policy: str | Policy, budget: int, steps: int) -> tuple[float, int]:
    """Seconds of the last step, and the most bytes that were in use during it. Raises OutOfMemory."""
    with Runtime("sim:p100", policy=policy, memory_budget=budget) as runtime:
        step = step_of(runtime, network, batch)
        for _ in range(steps):
            before = runtime.stats()
            runtime.memory.arena.reset_peak()
            with runtime.iteration():
                step()
        now = runtime.stats()
        return now.since(before).seconds, now.peak_bytes


def row(network: str, batch: int, budget: int, limit: float) -> tuple[dict[str, float], list[float]]:
    """Each policy's share of the unmanaged speed (0: does not fit), and the seconds that `auto` took to plan."""
    shares, timed = {}, Timed(process_time)
    for name, steps in STEPS.items():
        policy: Policy = timed if name == "auto" else create(name)
        try:
            shares[name] = limit / last_seconds(network, batch, policy, budget, steps)[0]
        except OutOfMemory:
            shares[name] = 0.0
    return shares, timed.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=NETWORKS, help="name:batch, ...")
    parser.add_argument("--budgets", default=BUDGETS, help="percent of the unmanaged peak, ...")
    args = parser.parse_args()
    print(f"# `auto` beside every other policy\n\nMade by `python -m bench.auto --networks {args.networks} --budgets "
          f"{args.budgets}`. Percent of the unmanaged speed on sim:p100, by what of the unmanaged peak there is; `-` "
          f"does not fit. A star: another policy is faster by more than {LOST:.1%}.\n")
    print("| network | batch | budget | " + " | ".join(STEPS) + " | first plan, s | all plans, s |")
    print("|---|--:|--:|" + "--:|" * (len(STEPS) + 2))
    for name in args.networks.split(","):
        network, batch = name.split(":")
        limit, peak = last_seconds(network, int(batch), "none", UNLIMITED, 2)
        for percent in map(int, args.budgets.split(",")):
            shares, seconds = row(network, int(batch), peak * percent // 100, limit)
            cells = [f"{100 * share:.1f}" if share else "-" for share in shares.values()]
            if max(shares.values()) > shares["auto"] * (1.0 + LOST):
                cells[-1] += "*"
            first = f"{seconds[0]:.2f}" if seconds else "-"
            print(f"| {network} | {batch} | {percent}% | {' | '.join(cells)} | {first} | {sum(seconds):.1f} |",
                  flush=True)


if __name__ == "__main__":
    main()
