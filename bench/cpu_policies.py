"""Policies at half of the peak on the CPU device, in turns: shares of the unmanaged speed, and what planning cost.

    python -m bench.cpu_policies [--cases resnet18:16,...] [--steps 60] > bench/results/cpu_policies.md

In each round every policy does one step of a training of its own, and is compared with the unmanaged step of that
round, so other work on the machine disturbs all alike. A share is the median over the later half of the rounds, when
plans have settled.
"""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from time import perf_counter

from bench.cpu_cases import CASES, half_of_peak, runtime_for, training_step
from minidl import Runtime, device, policies
from minidl.app.fit import default_memory

POLICIES = ("passive", "capuchin", "auto")
SMALLER = {"resnet50": 64}  # pixels a side


def row(name: str, batch: int, steps: int) -> str:
    """One case: the unmanaged seconds, each policy's share of that speed, and the planning of `auto`."""
    case = replace(CASES[name], size=SMALLER.get(name, CASES[name].size))
    with runtime_for(None, "none") as probe:
        step = training_step(probe, case, batch)
        step()
        budget = half_of_peak(probe, step)
        del step
    host = default_memory(device.create("cpu"))[1]
    runtimes = {"none": runtime_for(None, "none")}
    for policy in POLICIES:
        runtimes[policy] = Runtime("cpu", memory_budget=budget, host_memory=host, policy=policies.create(policy))
    trainings, seconds = {}, {policy: list[float]() for policy in runtimes}
    for policy, runtime in runtimes.items():
        with runtime:
            trainings[policy] = training_step(runtime, case, batch)
    for number in range(steps):
        order = list(runtimes)
        for policy in order[number % len(order):] + order[:number % len(order)]:
            with ExitStack() as stack:
                stack.enter_context(runtimes[policy])
                began = perf_counter()
                trainings[policy]()
                seconds[policy].append(perf_counter() - began)
    later = range(steps // 2, steps)
    shares = {policy: median(seconds["none"][n] / seconds[policy][n] for n in later) for policy in POLICIES}
    guide = runtimes["auto"].guide
    assert guide is not None
    cells = " | ".join(f"{100 * share:.0f}%" for share in shares.values())
    return (f"| {name} | {batch} | {median(seconds['none'][n] for n in later):.3f} | {cells} | "
            f"{guide.allowance.first_seconds:.2f} | {guide.allowance.seconds:.2f} | {guide.allowance.share or 0:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="resnet18:16,resnet50:8,vgg11:16,bert-small:8", help="name:batch, ...")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    print(f"# Policies at half of the peak, on the CPU\n\nMade by `python -m bench.cpu_policies --cases {args.cases} "
          f"--steps {args.steps}`. Shares of the unmanaged speed; planning in seconds of the run, and its share of it."
          "\n")
    print("| network | batch | unmanaged, s | " + " | ".join(POLICIES) + ""
          " | first plan, s | all plans, s | of the run |")
    print("|---|--:|--:|" + "--:|" * (len(POLICIES) + 3))
    for case in args.cases.split(","):
        name, batch = case.split(":")
        print(row(name, int(batch), args.steps), flush=True)


if __name__ == "__main__":
    main()
