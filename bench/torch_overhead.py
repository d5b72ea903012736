"""The processor's time that ``minidl.torch`` adds to a step of a PyTorch training, on one core, with tiny tensors.

    python -m bench.torch_overhead [--rounds 30]

    hooks     PyTorch's own saved-tensor hooks, with functions that return their argument
    nothing   managed, with room for all tensors: none moves
    half      managed, and every second saved tensor is swapped; optimizer state stays on the device

All take turns in one process, a step each; milliseconds of the thread's time, medians of the differences to the
unmanaged step before. Garbage is collected between steps.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

import minidl.torch
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Eviction, Proposal
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import KEEP, SWAP, problem

SETTLING = 20  # steps before any is timed: more than ``managed`` takes to trust that steps are alike
ROOMY = 1 << 50
Step = Callable[[], None]


class EverySecond(OnDemand):
    """A policy that swaps every second tensor that may leave."""

    name = "every second"
    plans = True

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return a plan that swaps every second tensor that may leave the device."""
        facts = problem(trace, costs)
        mode = np.full(len(facts.gap_call), KEEP, np.int64)
        mode[::2] = SWAP
        return Proposal(to_plan(trace, facts, mode, np.full(len(mode), -1)))

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Never called: ``minidl.torch`` evicts by plan alone."""
        return []


def resnet() -> Step:
    """ResNet-50 with an eighth of the width inside its blocks, 2 images of 32 x 32."""
    from torchvision.models.resnet import Bottleneck, ResNet

    network = ResNet(Bottleneck, [3, 4, 6, 3], num_classes=10, width_per_group=8)
    x, y = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    return _step(network, lambda: F.cross_entropy(network(x), y))


def gpt2() -> Step:
    """transformers' GPT-2 with 12 layers of 48."""
    from transformers import GPT2Config, GPT2LMHeadModel

    network = GPT2LMHeadModel(GPT2Config(n_embd=48, n_head=4, vocab_size=100, n_positions=64, bos_token_id=0,
                                         eos_token_id=0))
    x = torch.randint(0, 100, (1, 32))
    return _step(network, lambda: network(input_ids=x, labels=x).loss)


def _step(network: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return step


def measured(make: Callable[[], Step], rounds: int) -> dict[str, float]:
    """Return milliseconds by the name of a contender; of ``unmanaged`` the step itself."""
    step = make()
    nothing = minidl.torch.managed(ROOMY)
    half = minidl.torch.managed(ROOMY, policy=EverySecond(), states=False)
    contenders: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "unmanaged": nullcontext, "hooks": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
        "nothing": lambda: nothing, "half": lambda: half}
    took: dict[str, list[float]] = {name: [] for name in contenders}
    gc.disable()
    try:
        for _ in range(SETTLING + rounds):
            for name, around in contenders.items():
                gc.collect(1)
                with around():
                    began = time.thread_time()
                    step()
                    took[name].append((time.thread_time() - began) * 1e3)
    finally:
        gc.enable()
    plain = took["unmanaged"][SETTLING:]
    return {name: median(plain) if name == "unmanaged" else
            median(mine - its for mine, its in zip(each[SETTLING:], plain, strict=True)) for name, each in took.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| ms | unmanaged | + hooks | + nothing planned | + half planned |\n|---|--:|--:|--:|--:|")
    for make in (resnet, gpt2):
        cells = " | ".join(f"{ms:.1f}" for ms in measured(make, options.rounds).values())
        print(f"| {make.__name__} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
