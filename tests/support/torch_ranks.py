"""One rank of a training by DDP and of one by FSDP2, with and without ``minidl.torch``, as a process of its own.

    python torch_ranks.py RANK RANKS FILE
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch_nets import forced, same

import minidl.torch

STEPS = 4


def network() -> nn.Sequential:
    """Three blocks with dropout."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 48), nn.Tanh())
                           for _ in range(3)))


def by_ddp() -> nn.Module:
    """Gradients are averaged in buckets, by hooks in the midst of the backward pass."""
    return nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=1)


def by_fsdp() -> nn.Module:
    """Parameters are shards, gathered in each pass anew."""
    from torch.distributed.fsdp import fully_shard

    whole = network()
    for block in whole:
        fully_shard(block)
    fully_shard(whole)
    return whole


def trained(make: Callable[[], nn.Module], memory: Any = None) -> list[torch.Tensor]:
    """All that a training computes on this rank."""
    model = make()
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(64, 48)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    with memory if memory is not None else contextlib.nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    parameters = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return [*losses, *(p.detach().clone() for p in parameters), torch.get_rng_state()]


def main(rank: int, ranks: int, file: str) -> None:
    """Print a line for each kind of training and of plan: its bits; whether it swapped, and whether it recomputed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    for make in (by_ddp, by_fsdp):
        expected = trained(make)
        for how in ("swap", "drop"):
            memory = forced(how)
            try:
                found = "same" if same(expected, trained(make, memory)) else "differs"
            except minidl.torch.NotReplayable:
                found = "refused"
            report = memory.report()
            print(make.__name__, how, found, report.out_bytes > 0, report.replayed_calls > 0, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
