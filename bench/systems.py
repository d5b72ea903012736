"""Systems of the literature beside Capuchin on sim:p100: largest batches, and shares of the unmanaged speed.

    python -m bench.systems > bench/results/systems.md

Nothing is fused, as nothing was in the TensorFlow that the paper used. A largest batch is the largest at which a
system's plan fits in the model, for those that refuse what they cannot plan. A speed is that of the last step, as share
of the same batch's with unlimited memory; "cannot" is a refusal, "no room" an operation that failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import cache

from bench.support.steps import run, unmanaged, unmanaged_trace
from minidl import OutOfMemory
from minidl.device import profiles
from minidl.errors import Unsuitable
from minidl.lab.training_step import SEPARATE
from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace
from minidl.policies import create
from minidl.policies.literature import SOLVERS, SYSTEMS

PAPER = {  # model -> the largest batches that Capuchin's authors report for vDNN and for OpenAI's checkpointing
    "vgg16": (272, 260), "resnet50": (520, 540), "resnet152": (330, 440), "inception_v3": (400, 400),
    "inception_v4": (220, 220),
}
REFUSING = ("vdnn-conv", "vdnn-all", "openai-speed", "openai-memory", "chen-sqrt", "chen-greedy", "tflms",
            "flashneuron")
ORDER = ("capuchin", "openai-speed", "openai-memory", "vdnn-conv", "vdnn-all", "vdnn-dyn", "vdnn++")
CASES = (("vgg16", 250), ("resnet50", 300), ("resnet50", 460), ("resnet50", 520), ("resnet152", 150),
         ("resnet152", 330), ("inception_v3", 200), ("inception_v3", 380), ("inception_v4", 220))
FEW = (("vgg16", 250), ("resnet50", 300), ("resnet50", 520))
STEPS = {"capuchin": 12}  # until feedback has settled
USUAL_STEPS = 4  # the last one is the first under a plan
GRAIN = 50  # a largest batch is found to a part of it


@cache
def planned_from(model: str, batch: int) -> tuple[Trace, Costs, Limits]:
    """Return the trace of a step with unlimited memory, and the costs and limits by which a plan for it is made."""
    trace, costs, memory_bytes = unmanaged_trace(model, batch, switches=SEPARATE)
    return trace, costs, Limits(memory_bytes, profiles.get("p100").host_memory_bytes)


def fits(model: str, batch: int, policy: str) -> bool:
    """Return True if a system's plan for this batch fits."""
    try:
        create(policy).plan(*planned_from(model, batch))
    except Unsuitable:
        return False
    return True


def largest(model: str, policy: str, guess: int) -> int:
    """Return the largest batch at which a system's plan fits, to within a share ``GRAIN`` of it."""
    low, high, batch = 0, 0, guess
    while not high or high - low > max(1, low // GRAIN):
        if fits(model, batch, policy):
            low, batch = batch, (batch + high) // 2 if high else 2 * batch
        else:
            high, batch = batch, (low + batch) // 2
    return low


def share(model: str, batch: int, limit: float, policy: str) -> str:
    """Return as text the percent of the unmanaged speed, or the reason why there is none."""
    try:
        ran = run(model, batch, policy, steps=STEPS.get(policy, USUAL_STEPS), switches=SEPARATE)
        return f"{100 * ran.images_per_second / limit:.1f}"
    except Unsuitable:
        return "cannot"
    except OutOfMemory:
        return "no room"


def shares_table(policies: Iterable[str], cases: Iterable[tuple[str, int]]) -> None:
    """Print a table with a row for each policy and a column for each case."""
    columns = [(model, batch, unmanaged(model, batch, switches=SEPARATE).images_per_second) for model, batch in cases]
    print("| policy | " + " | ".join(f"{model} at {batch}" for model, batch, _ in columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for policy in policies:
        print(f"| `{policy}` | " + " | ".join(share(*of, policy) for of in columns) + " |", flush=True)


def largest_table() -> None:
    """Print a table with a row for each network and a column for each system that refuses what it cannot plan."""
    print("| model | paper: vDNN | paper: OpenAI | " + " | ".join(f"`{policy}`" for policy in REFUSING) + " |")
    print("|---|--:|--:|" + "--:|" * len(REFUSING))
    for model, paper in PAPER.items():
        found = [str(largest(model, policy, max(paper))) for policy in REFUSING]
        print(f"| {model} | {paper[0]} | {paper[1]} | " + " | ".join(found) + " |", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("# Systems of the literature\n\nMade by `python -m bench.systems`. sim:p100 (14.8 GiB, 12.4 GB/s each way), "
          "nothing fused.\n\n## Largest batches\n")
    largest_table()
    print("\n## Percent of the unmanaged speed: the order of the paper's systems\n")
    shares_table(ORDER, CASES)
    print("\n## Percent of the unmanaged speed: all of them\n")
    shares_table((policy for policy in SYSTEMS if policy not in (*ORDER, *SOLVERS)), FEW)


if __name__ == "__main__":
    main()
