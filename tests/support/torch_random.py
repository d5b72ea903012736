"""Random small PyTorch programs: views, in-place writes where autograd allows them, random numbers, buffers.

A program is drawn from a seed as a list of operations on a pool of square matrices. Some end with an error in PyTorch
itself, which must then also appear with ``minidl.torch``.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

SIDE = 40  # 6,400 bytes per matrix: large enough to be evicted
Matrix = torch.Tensor


class World:
    """The parameters and buffers of a program."""

    def __init__(self) -> None:
        self.parameters = [nn.Parameter(torch.randn(SIDE, SIDE) / 6) for _ in range(4)]
        self.mean, self.variance, self.average = torch.zeros(SIDE), torch.ones(SIDE), torch.zeros(SIDE, SIDE)


def _average(u: Matrix, w: World) -> Matrix:
    w.average.mul_(0.9).add_(u.detach(), alpha=0.1)
    return u * w.average.clone()


def _half_written(u: Matrix) -> Matrix:
    y = u.clone()
    y[:, :SIDE // 2].mul_(2)
    return y


def _complex(u: Matrix) -> Matrix:
    z = torch.view_as_complex(u.reshape(SIDE, SIDE // 2, 2).contiguous())
    return torch.view_as_real(z * z.conj() + z).reshape(SIDE, SIDE)


# name -> a function of two matrices of the pool, a parameter and the world.
OPERATIONS: dict[str, Callable[[Matrix, Matrix, Matrix, World], Matrix]] = {
    "product": lambda u, v, p, w: u @ p,
    "both": lambda u, v, p, w: u @ v / SIDE,
    "sum": lambda u, v, p, w: u + v,
    "scaled sum": lambda u, v, p, w: torch.add(u, v, alpha=0.3),
    "gate": lambda u, v, p, w: u * torch.tanh(v),
    "relu in place": lambda u, v, p, w: (u * 1.5).relu_(),
    "relu": lambda u, v, p, w: F.relu(u),
    "dropout": lambda u, v, p, w: F.dropout(u, 0.3),
    "dropout in place": lambda u, v, p, w: F.dropout(u * 1.1, 0.3, inplace=True),
    "gelu": lambda u, v, p, w: F.gelu(u),
    "exp": lambda u, v, p, w: torch.exp(-u.abs()),
    "sigmoid chain in place": lambda u, v, p, w: u.clone().add_(v).mul_(0.5).sigmoid_(),
    "views": lambda u, v, p, w: u.view(8, 5, SIDE).transpose(0, 1).reshape(SIDE, SIDE),
    "transposed": lambda u, v, p, w: u.t(),
    "chunks": lambda u, v, p, w: torch.cat([u.chunk(2, 1)[1].cos(), u.chunk(2, 1)[0].sin()], 1),
    "halves": lambda u, v, p, w: torch.cat([u[:SIDE // 2], v[SIDE // 2:]]),
    "layer norm": lambda u, v, p, w: F.layer_norm(u, (SIDE,), p[0], p[1]),
    "batch norm": lambda u, v, p, w: F.batch_norm(u, w.mean, w.variance, p[2], p[3], True, 0.1),
    "batch norm, evaluated": lambda u, v, p, w: F.batch_norm(u, w.mean.clone(), w.variance.clone(), p[2], p[3]),
    "softmax": lambda u, v, p, w: u.softmax(-1),
    "half written": lambda u, v, p, w: _half_written(u),
    "average": lambda u, v, p, w: _average(u, w),
    "noise": lambda u, v, p, w: u + torch.randn_like(u) * 0.1,
    "mask": lambda u, v, p, w: u * torch.bernoulli(torch.full_like(u, 0.7)),
    "permuted": lambda u, v, p, w: u[torch.randperm(SIDE)],
    "cumulated": lambda u, v, p, w: u.cumsum(1) / 8,
    "chosen": lambda u, v, p, w: torch.where(u > v, u, v * 0.5),
    "power": lambda u, v, p, w: u.clamp(-2, 2) ** 3,
    "reversed": lambda u, v, p, w: u.flip(0),
    "expanded": lambda u, v, p, w: u * u[:1].expand(SIDE, SIDE),
    "standardised": lambda u, v, p, w: (u - u.mean(1, keepdim=True)) / (u.std(1, keepdim=True) + 1),
    "convolution": lambda u, v, p, w: F.conv2d(u[None, None], p[:3, :3].reshape(1, 1, 3, 3), padding=1)[0, 0],
    "pooled": lambda u, v, p, w: F.max_pool1d(u, 2).repeat(1, 2),
    "sorted": lambda u, v, p, w: u.sort(1)[0],
    "complex": lambda u, v, p, w: _complex(u),
    "attention": lambda u, v, p, w: F.scaled_dot_product_attention(
        *(t.reshape(1, 2, SIDE // 2, SIDE) for t in (u, v, u)), dropout_p=0.1).reshape(SIDE, SIDE),
    "norm": lambda u, v, p, w: u / (u.norm() + 1),
    "detached": lambda u, v, p, w: u.detach() + v,
    "own gradient": lambda u, v, p, w: u + torch.autograd.grad(
        (u.detach().requires_grad_() * p).sin().sum(), p, retain_graph=True)[0].detach(),
    "left behind": lambda u, v, p, w: (u.exp().sin().sum() * 0 + 1).detach() * u,
}


def drawn(seed: int) -> list[tuple[str, float, float]]:
    """Return the operations of a program, with the pool positions that each reads."""
    draw = random.Random(seed)
    return [(draw.choice(list(OPERATIONS)), draw.random(), draw.random()) for _ in range(draw.randint(4, 20))]


def loss_of(plan: list[tuple[str, float, float]], x: Matrix, world: World) -> Matrix:
    """Run one forward pass."""
    pool = [x]
    for name, a, b in plan:
        u, v = pool[int(a * len(pool))], pool[int(b * len(pool))]
        pool.append(OPERATIONS[name](u, v, world.parameters[int(b * 4)], world))
        if len(pool) > 6:
            pool.pop(int(a * 3))
    return sum(((p * p).mean() for p in pool[-2:]), torch.zeros(()))


def outcome(seed: int, memory: object = None, steps: int = 4) -> list[torch.Tensor] | str:
    """Train a program; return all that it computes, or the kind of error that ends it."""
    torch.manual_seed(seed)
    plan, world, x = drawn(seed), World(), torch.randn(SIDE, SIDE)
    optimizer = (torch.optim.AdamW(world.parameters, 1e-2) if seed % 2 else
                 torch.optim.SGD(world.parameters, 0.1, momentum=0.9))
    losses = []

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(plan, x, world)
            if loss.requires_grad:
                loss.backward()
            losses.append(loss.detach())
            optimizer.step()

    try:
        if memory is None:
            train()
        else:
            with memory:  # type: ignore[attr-defined]
                train()
    except RuntimeError as error:
        return type(error).__name__
    return [*losses, *(t.detach() for t in world.parameters), world.mean, world.variance, world.average,
            torch.get_rng_state()]
