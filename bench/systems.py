"""Systems of the literature beside Capuchin on sim:p100: largest batches, and shares of the unmanaged speed.

    python -m bench.systems [--cases resnet50:520,...] > bench/results/systems.md

Nothing is fused, as nothing was in the TensorFlow that the paper used. A largest batch is the largest at which a
system's plan fits in the model, for those that refuse what they cannot plan. A speed is that of the last step, as share
of the same batch's with unlimited memory; "cannot" is a refusal, "no room" an operation that failed.
"""

from __future__ import annotations

import argparse
from functools import cache

from minidl import OutOfMemory, Runtime
from minidl.errors import Unsuitable
from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace
from minidl.policies import create
from minidl.policies.systems import SYSTEMS
from minidl.testing.steps import SEPARATE, UNLIMITED, run, training_step, unmanaged

PAPER = {  # model -> the largest batches that Capuchin's authors report for vDNN and for OpenAI's checkpointing
    "vgg16": (272, 260), "resnet50": (520, 540), "resnet152": (330, 440), "inception_v3": (400, 400),
    "inception_v4": (220, 220),
}
REFUSING = ("vdnn-conv", "vdnn-all", "openai-speed", "openai-memory", "chen-sqrt", "chen-greedy", "tflms",
            "flashneuron")
CASES = ("vgg16:250", "resnet50:300", "resnet50:520", "resnet152:150", "resnet152:330", "inception_v3:200",
         "inception_v3:380", "inception_v4:220")
STEPS = {"capuchin": 12, **dict.fromkeys(SYSTEMS, 5)}
GRAIN = 50  # a largest batch is found to a part of it


@cache
def planned_from(model: str, batch: int) -> tuple[Trace, Costs, Limits]:
    """A step with unlimited memory, and what a plan for it is weighed with."""
    with Runtime(device="sim:p100", policy="none", memory_budget=UNLIMITED, switches=SEPARATE) as runtime:
        step = training_step(runtime, model, batch)
        for _ in range(2):
            with runtime.iteration():
                step()
                trace = runtime.trace()
        profile = runtime.device.profile
        return trace, profile.link_costs, Limits(profile.memory_bytes, profile.host_memory_bytes)


def fits(model: str, batch: int, policy: str) -> bool:
    """Whether a system's plan fits."""
    try:
        create(policy).plan(*planned_from(model, batch))
    except Unsuitable:
        return False
    return True


def largest(model: str, policy: str, guess: int) -> int:
    """The largest batch at which a system's plan fits, to a part of ``GRAIN``."""
    low, high, batch = 0, 0, guess
    while not high or high - low > max(1, low // GRAIN):
        if fits(model, batch, policy):
            low, batch = batch, (batch + high) // 2 if high else 2 * batch
        else:
            high, batch = batch, (low + batch) // 2
    return low


def share(model: str, batch: int, policy: str, limit: float) -> str:
    """Percent of the unmanaged speed, or why there is none."""
    try:
        ran = run(model, batch, policy, steps=STEPS[policy], switches=SEPARATE)
        return f"{100 * ran.images_per_second / limit:.1f}"
    except Unsuitable:
        return "cannot"
    except OutOfMemory:
        return "no room"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="model:batch, ...")
    args = parser.parse_args()
    print(f"# Systems of the literature\n\nMade by `python -m bench.systems --cases {args.cases}`. sim:p100 (14.8 GiB, "
          "12.4 GB/s each way), nothing fused.\n\n## Largest batches\n")
    print("| model | paper: vDNN | paper: OpenAI | " + " | ".join(REFUSING) + " |")
    print("|---|--:|--:|" + "--:|" * len(REFUSING))
    for model, paper in PAPER.items():
        found = [str(largest(model, policy, max(paper))) for policy in REFUSING]
        print(f"| {model} | {paper[0]} | {paper[1]} | " + " | ".join(found) + " |", flush=True)
    cases = [case.split(":") for case in args.cases.split(",")]
    print("\n## Percent of the unmanaged speed\n\n| system | " + " | ".join(f"{m} at {n}" for m, n in cases) + " |")
    print("|---|" + "--:|" * len(cases))
    limits = [unmanaged(model, int(batch), switches=SEPARATE).images_per_second for model, batch in cases]
    for policy in STEPS:
        cells = [share(model, int(batch), policy, limit) for (model, batch), limit in zip(cases, limits, strict=True)]
        print(f"| `{policy}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
