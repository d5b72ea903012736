"""Policies side by side on sim:p100: the share of the unmanaged speed (the same batch with unlimited memory).

    python -m bench.policies [--quick] [--separate] > bench/results/policies.md

Each run goes on until plans have settled; the speed is that of its last step. "paper" is what Capuchin's authors report
for the same model and batch, where they do.
"""

import argparse

from bench.support.steps import run, unmanaged
from minidl import OutOfMemory
from minidl.memory.switches import Switches

CASES = [  # model, batch, share that the paper reports for Capuchin, share that `auto` is to reach
    ("resnet50", 220, "97% at +20%", "99.5%"), ("resnet152", 102, "97% at +20%", "99.5%"),
    ("vgg16", 276, "97% at +20%", "99.5%"), ("resnet50", 1014, "runs", "90%"), ("resnet152", 798, "runs", "89%"),
    ("vgg16", 350, "runs", "99%"), ("resnet50", 1440, "-", "72%"), ("resnet50", 1840, "-", "58%"),
]
STEPS = {"passive": 3, "recompute": 2, "capuchin": 12, "auto": 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the recompute policy, which is slow to simulate")
    parser.add_argument("--separate", action="store_true", help="batch norm, addition and ReLU as separate operations")
    args = parser.parse_args()
    switches = Switches(fused=not args.separate)
    names = [name for name in STEPS if not (args.quick and name == "recompute")]
    print("# Policies\n\nMade by `python -m bench.policies`. Images/s on sim:p100 (14.8 GiB, 12.4 GB/s each way), and "
          "the share of the unmanaged speed.\n")
    print("| model | batch | unmanaged | " + " | ".join(names) + " | paper's Capuchin | wanted of auto |")
    print("|---|--:|--:|" + "--:|" * (len(names) + 2))
    for name, batch, paper, wanted in CASES:
        limit = unmanaged(name, batch, switches=switches).images_per_second
        cells = []
        for policy in names:
            try:
                speed = run(name, batch, policy, steps=STEPS[policy], switches=switches).images_per_second
                cells.append(f"{speed:.1f} ({100 * speed / limit:.1f}%)")
            except OutOfMemory:
                cells.append("does not fit")
        print(f"| {name} | {batch} | {limit:.1f} | " + " | ".join(cells) + f" | {paper} | {wanted} |", flush=True)


if __name__ == "__main__":
    main()
