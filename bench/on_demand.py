"""Eviction on demand on sim:p100: swapping from the front of the access list against `dtr-swap`, which weighs.

    python -m bench.on_demand > bench/results/on_demand.md

The first table is the warm-up of `auto`: its first two iterations run without a plan. The second is what it does with
programs that leave their plan. "front" is `auto` with the victims of `passive`, as in the paper's passive mode.
"""

from bench.support.on_demand import Front, other_batch, random_branch, seconds, speeds, three_lengths
from bench.support.steps import unmanaged
from minidl.policies.auto.policy import Auto

CASES = [("resnet50", 1014), ("resnet50", 1440), ("resnet152", 798), ("vgg16", 350), ("bert-base", 450),
         ("bert-base", 3000)]


def main() -> None:
    print("# Eviction on demand\n\nMade by `python -m bench.on_demand`, on sim:p100 (14.8 GiB, 12.4 GB/s each way, "
          "256 GB host).\n\n## Iterations 1 to 3 under `auto`, images or sequences a second\n")
    print("| model | batch | unmanaged | swapping from the front | weighing |\n|---|--:|--:|--:|--:|")
    for name, batch in CASES:
        limit = "-" if name.startswith("bert") else f"{unmanaged(name, batch).images_per_second:.0f}"
        cells = [" / ".join(f"{s:.0f}" for s in speeds(policy(rounds=0), name, batch)) for policy in (Front, Auto)]
        print(f"| {name} | {batch} | {limit} | " + " | ".join(cells) + " |", flush=True)
    print("\n## Programs that leave their plan, seconds\n\n"
          "| program | swapping from the front | weighing |\n|---|--:|--:|")
    for program, budget in ((three_lengths, "3GiB"), (random_branch, None), (other_batch, None)):
        front, weighing = (seconds(policy(rounds=0), program, budget) for policy in (Front, Auto))
        print(f"| {str(program.__doc__).split(':')[0].rstrip('.')} | {front:.2f} | {weighing:.2f} |", flush=True)


if __name__ == "__main__":
    main()
