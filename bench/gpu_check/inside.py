"""A PyTorch training on this GPU, unmanaged and under ``minidl.torch`` by budget; and its copies at their latest.

Each of the seven waits has a program (``bench/support/torch_waits``): with the wait all its bytes must be right.
Without it they should not be; where they are right all the same, the program has shown nothing, and the line says so.

The training is a stack of transformer layers with dropout, under AdamW, in PyTorch's deterministic mode. Contenders
run one after the other, with the same seed. Bits are those of losses, parameters and the optimizer's state. The peak is
that of PyTorch's allocator over one step, without what was there before the contender. ``all`` has room for everything,
so it shows what managing itself takes.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import minidl.torch
from bench.gpu_check.setting import Record, Setting, Stack
from bench.support.torch_waits import PROGRAMS, Gpu, Late, right

SETTLING = 4  # steps before any is timed: one away, one measured, two planned
ENDLESS = 1 << 50
SHARES = {"managed, all": None, "managed, 80%": 0.8, "managed, 65%": 0.65, "managed, 50%": 0.5, "managed, floor": 0.0}
WORDS = 256


class Layers(nn.Module):
    """Embedding, transformer layers, scores. checkpoints: True if each layer is computed again in the backward pass."""

    def __init__(self, stack: Stack, *, checkpoints: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, stack.width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(stack.width, stack.heads, 4 * stack.width, 0.1,
                                                               batch_first=True) for _ in range(stack.layers))
        self.scores, self.checkpoints = nn.Linear(stack.width, WORDS), checkpoints

    def forward(self, tokens: torch.Tensor) -> Any:
        """Map tokens [sequences, length] to scores [sequences, length, words]."""
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.scores(x)


def measure(setting: Setting, record: Record) -> None:
    """Record which of the waits' programs are right, then the seconds, peaks and bits of the training."""
    where = "cuda" if setting.compiles and setting.device.startswith("cuda") else "cpu"
    if where == "cuda" and not torch.cuda.is_available():
        record.leave_out("this PyTorch finds no CUDA device")
        return
    for wait in PROGRAMS:
        name = f"wait {wait.name}"
        if not record.known(name):
            with record.one(name):
                _try(record, name, wait, where)
    with _repeatable():
        _train_all(setting, record, where)


def _try(record: Record, name: str, wait: Any, where: str) -> None:
    def races(on: Late | Gpu) -> bool:
        return isinstance(on, Late) and bool(on.cuda.races)

    whole, without = (Gpu() if where == "cuda" else Late() for _ in range(2))
    good = right(whole, wait) and not races(whole)
    seen = not right(without, wait, missing=True) or races(without)
    record.put(name, {"right": good, "seen when missing": seen},
               f"{name}: {'right' if good else 'WRONG'}; when it is missing that is {'seen' if seen else 'not seen'}")
    if not good:
        record.fail(f"{name}: wrong bytes although it is made: {wait.value}")


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """Return a context with PyTorch's deterministic mode, which warns of operations that have no deterministic form.

    Attention is composed of matrix products in it, since the fused kernel for float32 adds in no fixed order.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def _train_all(setting: Setting, record: Record, where: str) -> None:
    stack, rounds = setting.sizes.stack, setting.sizes.rounds
    plain, expected = _run(stack, where, rounds)
    again, repeated = _run(stack, where, rounds)
    record.put("unmanaged", plain, f"unmanaged: {1e3 * plain['seconds']:.1f} ms, {plain['peak'] / 2**20:.0f} MiB")
    if not _same(repeated, expected):
        record.fail("two unmanaged trainings end with other bits, so nothing can be compared")
        return
    known = minidl.torch.managed(ENDLESS, device=where)
    _run(stack, where, 1, memory=known)
    report = known.report()
    for name in ("save_on_cpu", "checkpoint", *SHARES):
        if record.known(name) or not setting.in_time(record, name):
            continue
        with record.one(name):
            share = SHARES.get(name)
            budget = None if share is None else max(report.floor_bytes, int(share * report.unmanaged_bytes))
            memory = minidl.torch.managed(budget or ENDLESS, device=where) if name in SHARES else None
            found, bits = _run(stack, where, rounds, memory=memory, checkpoints=name == "checkpoint",
                               around=_saved_on_cpu if name == "save_on_cpu" else contextlib.nullcontext)
            found |= {"budget": budget, "slower": found["seconds"] / plain["seconds"], "same": _same(bits, expected)}
            of = f" of {budget / 2**20:.0f} MiB" if budget else ""
            record.put(name, found, f"{name}: x{found['slower']:.2f}, {found['peak'] / 2**20:.0f} MiB{of}, bits "
                       f"{'same' if found['same'] else 'OTHER'}")
            if name in SHARES and not found["same"]:
                record.fail(f"{name}: the training ends with other bits than unmanaged")
            if budget and found["peak"] > budget:
                record.fail(f"{name}: a peak of {found['peak']} bytes in a budget of {budget}")


def _saved_on_cpu() -> Any:
    return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())


def _run(stack: Stack, where: str, rounds: int, *, memory: Any = None, checkpoints: bool = False,
         around: Any = contextlib.nullcontext) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Train a fresh stack; return the median seconds of a step and its peak bytes, and all that it has computed."""
    gc.collect()
    before = _allocated(where)
    torch.manual_seed(0)
    with torch.device(where):
        network = Layers(stack, checkpoints=checkpoints)
        tokens = torch.randint(WORDS, (stack.sequences, stack.length))
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)
    losses: list[torch.Tensor] = []

    def step() -> None:
        optimizer.zero_grad()
        with around():
            loss = F.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    seconds = []
    with memory if memory is not None else contextlib.nullcontext():
        for _ in range(SETTLING):
            step()
        for _ in range(rounds):
            began = _now(where)
            step()
            seconds.append(_now(where) - began)
        state = [v for each in optimizer.state.values() for v in each.values()
                 if memory is None or not memory.states.waits(v)]
        with _peak(where, before, [*network.parameters(), *state]) as peak:
            del state
            step()
    kept = [v for each in optimizer.state.values() for v in each.values()]
    bits = [t.detach().cpu() for t in (*losses, *network.parameters(), *kept)]
    return {"seconds": median(seconds), "peak": peak[0]}, bits


@contextlib.contextmanager
def _peak(where: str, before: int, lasting: list[torch.Tensor]) -> Iterator[list[int]]:
    """Give a list that has the peak bytes of the code inside when it has ended. before: bytes that do not count."""
    found: list[int] = []
    if where == "cuda":
        torch.cuda.reset_peak_memory_stats()
        yield found
        torch.cuda.synchronize()
        found.append(torch.cuda.max_memory_allocated() - before)
    else:
        with minidl.torch.Meter(lasting) as meter:
            lasting.clear()
            yield found
        found.append(meter.peak)


def _allocated(where: str) -> int:
    """The bytes that PyTorch has on the device: also those of libraries, which stay."""
    if where != "cuda":
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _now(where: str) -> float:
    if where == "cuda":
        torch.cuda.synchronize()
    return perf_counter()


def _same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
