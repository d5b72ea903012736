"""The processor's time that ``minidl.torch`` adds to a step of a PyTorch training, on one core, with tiny tensors.

    python -m bench.torch_overhead [--rounds 30]

    hooks        PyTorch's own saved-tensor hooks, with functions that give back what they get
    nothing      managed, with room for all: no tensor moves
    half         managed, in the middle between the floor and the unmanaged peak

All take turns in one process, a step each; milliseconds of the thread's time, medians of the differences to an
unmanaged step beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

import minidl.torch

SETTLING = 5
Step = Callable[[], None]


def resnet() -> Step:
    """torchvision's ResNet-50, an image of 32 x 32."""
    from torchvision.models import resnet50

    network = resnet50(num_classes=10)
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
    """Milliseconds by the name of a contender; of ``unmanaged`` the step itself."""
    known = minidl.torch.managed(1 << 50)
    step = make()
    with known:
        for _ in range(SETTLING):
            step()
    report = known.report()
    half = minidl.torch.managed((report.floor_bytes + report.unmanaged_bytes) // 2)
    contenders: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "unmanaged": nullcontext, "hooks": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
        "nothing": lambda: known, "half": lambda: half}
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(SETTLING + rounds):
        for name, around in contenders.items():
            with around():
                began = time.thread_time()
                step()
                took[name].append((time.thread_time() - began) * 1e3)
    plain = took["unmanaged"][SETTLING:]
    return {name: median(plain) if name == "unmanaged" else
            median(mine - its for mine, its in zip(each[SETTLING:], plain, strict=True)) for name, each in took.items()}


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| ms | unmanaged | + hooks | + nothing planned | + half planned |\n|---|--:|--:|--:|--:|")
    for make in (resnet, gpt2):
        cells = " | ".join(f"{ms:.1f}" for ms in measured(make, options.rounds).values())
        print(f"| {make.__name__} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
