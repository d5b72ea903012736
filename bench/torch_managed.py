"""PyTorch trainings as they are, with what PyTorch offers against their memory, and under ``minidl.torch`` by budget.

    python -m bench.torch_managed [--cases gpt,vit,...] [--rounds 7] [--out FILE.md]

All contenders of a case are in one process and take turns: a step each, round after round. Each trains in a thread of
its own, and ``managed`` is entered there once, around the whole training. PyTorch computes with one thread. Seconds are
those of the processor, medians of the rounds. The peak is that of dispatched storages (``minidl.torch.Meter``), the
largest of the first two steps, which follow no plan, and the last. Bits are those of losses, parameters, buffers and
the generator after the same number of steps.

    checkpoint   torch.utils.checkpoint around every block
    selective    the same, but results of products, convolutions and attention are kept
    save_on_cpu  every saved tensor is copied to the host and back, as torch.autograd.graph.save_on_cpu does on a GPU
                 (without one it copies nothing)
    managed      a budget between the floor, when all saved tensors are away, and the unmanaged peak; and the peaks of
                 ``checkpoint`` and ``save_on_cpu``, where these are above the floor, to compare times at equal peak
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import minidl.torch
from minidl.outside.units import format_bytes
from minidl.torch.backends import on_host, quiet

SETTLING = 4       # steps before any is timed: one away, one measured, two planned
KEPT = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default,
        torch.ops.aten.convolution.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "checkpoint": {}, "selective": {"context_fn": partial(create_selective_checkpoint_contexts, KEPT)}}
EQUALS = ("checkpoint", "save_on_cpu")  # whose peaks are budgets, too
SHARES = {"managed 80%": 0.8, "managed 65%": 0.65, "managed 50%": 0.5, "managed, floor": 0.0}
HEADER = "| | seconds | of unmanaged | peak | of unmanaged | bits |\n|---|--:|--:|--:|--:|---|"


class Blocks(nn.Module):
    """A stem, blocks that may be checkpointed, a head."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head
        self.checkpoints: dict[str, Any] | None = None  # options of each block's checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The head's output."""
        x = self.stem(x)
        for block in self.blocks:
            options = self.checkpoints
            x = block(x) if options is None else checkpoint(block, x, use_reentrant=False, **options)
        return self.head(x)


class Layer(nn.Module):
    """A transformer's layer, which keeps the shape [n, length, width]."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
                                 nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then a perceptron."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Gated(nn.Module):
    """A layer as in Llama, with RMS norm and a gated perceptron: [n, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the perceptron."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Patches(nn.Module):
    """The embedding of image patches: [n, 3, h, w] to [n, patches, width]."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, side, side)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a vector for each patch."""
        return self.project(x).flatten(2).transpose(1, 2)


class Mean(nn.Module):
    """A head: from [n, length, width] the mean over the length, then scores [n, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.head(x.mean(1))


def gpt() -> tuple[Blocks, torch.Tensor, torch.Tensor]:
    """Like GPT-2: 4 layers of 128, 4 sequences of 256 tokens."""
    words, width = 500, 128
    return (Blocks(nn.Embedding(words, width), [Layer(width, 4, causal=True) for _ in range(4)],
                   nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))),
            torch.randint(0, words, (4, 256)), torch.randint(0, words, (4, 256)))


def vit() -> tuple[Blocks, torch.Tensor, torch.Tensor]:
    """Like ViT-tiny: 6 layers of 192, 4 images of 224 x 224."""
    return (Blocks(Patches(192, 16), [Layer(192, 3, causal=False) for _ in range(6)], Mean(192, 10)),
            torch.randn(4, 3, 224, 224), torch.randint(0, 10, (4,)))


def bert() -> tuple[Blocks, torch.Tensor, torch.Tensor]:
    """Like BERT: 6 layers of 128, 16 sequences of 64 tokens."""
    words, width = 1000, 128
    return (Blocks(nn.Embedding(words, width), [Layer(width, 4, causal=False) for _ in range(6)],
                   nn.Linear(width, words)), torch.randint(0, words, (16, 64)), torch.randint(0, words, (16, 64)))


def llama() -> tuple[Blocks, torch.Tensor, torch.Tensor]:
    """Like Llama: 6 layers of 128, 4 sequences of 192 tokens."""
    words, width = 500, 128
    return (Blocks(nn.Embedding(words, width), [Gated(width, 4) for _ in range(6)],
                   nn.Sequential(nn.RMSNorm(width), nn.Linear(width, words, bias=False))),
            torch.randint(0, words, (4, 192)), torch.randint(0, words, (4, 192)))


def mobilenet() -> tuple[Blocks, torch.Tensor, torch.Tensor]:
    """torchvision's MobileNetV3, small, 8 images of 128 x 128."""
    from torchvision.models import mobilenet_v3_small

    made = mobilenet_v3_small(num_classes=10)
    first, *blocks = made.features
    return (Blocks(first, blocks, nn.Sequential(made.avgpool, nn.Flatten(), made.classifier)),
            torch.randn(8, 3, 128, 128), torch.randint(0, 10, (8,)))


def resnet() -> tuple[Blocks, torch.Tensor, torch.Tensor]:
    """torchvision's ResNet-50, 6 images of 160 x 160."""
    from torchvision.models import resnet50

    made = resnet50(num_classes=10)
    blocks = [block for layer in (made.layer1, made.layer2, made.layer3, made.layer4) for block in layer]
    return (Blocks(nn.Sequential(made.conv1, made.bn1, made.relu, made.maxpool), blocks,
                   nn.Sequential(made.avgpool, nn.Flatten(), made.fc)),
            torch.randn(6, 3, 160, 160), torch.randint(0, 10, (6,)))


CASES: dict[str, Callable[[], tuple[Blocks, torch.Tensor, torch.Tensor]]] = {
    "gpt": gpt, "llama": llama, "vit": vit, "bert": bert, "resnet": resnet, "mobilenet": mobilenet}


def save_on_cpu() -> Any:
    """Return hooks that copy each saved tensor to the host and back. A meter does not count the copy on the host."""
    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        with quiet():
            copy = tensor.detach().clone()
        on_host[copy.untyped_storage()._cdata] = copy.untyped_storage()
        return copy
    return saved_tensors_hooks(to_host, torch.clone)


@dataclass
class Contender:
    """One training, in a thread of its own. peak: the most bytes of a metered step.

    around: the context in which a step is carried out; memory: the ``managed`` object, or None.
    """

    name: str
    network: Blocks
    x: torch.Tensor
    y: torch.Tensor
    optimizer: torch.optim.Optimizer
    generator: torch.Tensor
    around: Callable[[], Any] = contextlib.nullcontext
    memory: Any = None
    seconds: list[float] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    peak: int = 0
    thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1))

    def begin(self) -> None:
        """Enter the context that manages memory, if the contender has one."""
        if self.memory is not None:
            self.thread.submit(self.memory.start).result()

    def end(self) -> None:
        """Leave the context that manages memory, and end the thread."""
        if self.memory is not None:
            self.thread.submit(self.memory.stop).result()
        self.thread.shutdown()

    def step(self, *, timed: bool) -> None:
        """One step, timed or metered."""
        self.thread.submit(self._timed if timed else self._metered).result()

    def _timed(self) -> None:
        began = time.process_time()
        self._step()
        self.seconds.append(time.process_time() - began)

    def _metered(self) -> None:
        with minidl.torch.Meter(self._lasting()) as meter:
            self._step()
        self.peak = max(self.peak, meter.peak)

    def _lasting(self) -> Iterator[torch.Tensor]:
        # One by one: a list would hold the optimizer's state, which could then not leave.
        yield from (*self.network.parameters(), *self.network.buffers())
        yield from (v for each in self.optimizer.state.values() for v in each.values() if isinstance(v, torch.Tensor))

    def _step(self) -> None:
        """Carry out one step; the random generator continues from this contender's previous step."""
        torch.set_rng_state(self.generator)
        with self.around():
            self.optimizer.zero_grad()
            scores = self.network(self.x)
            loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), self.y.reshape(-1))
            loss.backward()
            self.optimizer.step()
        self.generator = torch.get_rng_state()
        self.losses.append(loss.detach())

    def bits(self) -> list[torch.Tensor]:
        """Return copies of all values that training has computed."""
        return [*self.losses, *(t.detach() for t in self.network.state_dict().values()), self.generator]


def contender(name: str, case: str, **more: Any) -> Contender:
    """Make a contender of a case, from the same seed as all others."""
    torch.manual_seed(0)
    network, x, y = CASES[case]()
    network.checkpoints = CHECKPOINTS.get(name)
    return Contender(name, network, x, y, torch.optim.AdamW(network.parameters(), 1e-3), torch.get_rng_state(), **more)


def others(case: str) -> list[Contender]:
    """Make the contenders of a case that have no budget, the unmanaged one first."""
    return [contender("unmanaged", case), *(contender(name, case) for name in CHECKPOINTS),
            contender("save_on_cpu", case, around=save_on_cpu)]


def budgets(case: str, policy: str) -> dict[str, int]:
    """Return budgets in bytes by the contender's name; none is below the floor."""
    known = contender("", case, memory=minidl.torch.managed(1 << 50, policy=policy))
    known.begin()
    for _ in range(2):
        known.step(timed=True)
    known.end()
    report = known.memory.report()
    found = {name: max(report.floor_bytes, int(share * report.unmanaged_bytes)) for name, share in SHARES.items()}
    for each in others(case):
        if each.name in EQUALS:
            for _ in range(2):
                each.step(timed=False)
            if each.peak > report.floor_bytes:
                found[f"managed, as {each.name}"] = each.peak
        each.end()
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def run(case: str, rounds: int, policy: str, out: Any) -> None:
    """Train one case's contenders in turns, and print its table."""
    within = budgets(case, policy)
    contenders = others(case)
    contenders += [contender(name, case, memory=minidl.torch.managed(budget, policy=policy))
                   for name, budget in within.items()]
    for each in contenders:
        each.begin()
    for n in range(SETTLING + rounds + 1):
        for each in contenders:
            gc.collect()
            each.step(timed=2 <= n < SETTLING + rounds)
    for each in contenders:
        each.end()
        del each.seconds[:SETTLING - 2]
    plain = contenders[0]
    print(f"\n{CASES[case].__doc__}\n\n{HEADER}", file=out)
    for each in contenders:
        ratio = median(mine / its for mine, its in zip(each.seconds, plain.seconds, strict=True))
        same = all(a.equal(b) for a, b in zip(each.bits(), plain.bits(), strict=True))
        budget = f", of {format_bytes(within[each.name])}" if each.name in within else ""
        print(f"| {each.name} | {median(each.seconds):.3f} | x{ratio:.2f} | {format_bytes(each.peak)}{budget} | "
              f"{each.peak / plain.peak:.0%} | {'same' if same else 'others'} |", file=out, flush=True)


def main() -> None:
    """Read the command line, and print the tables of all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out.open("w") if options.out is not None else sys.stdout
    print(f"# PyTorch trainings by budget\n\nPyTorch {torch.__version__}, one thread, medians of {options.rounds} "
          f"rounds; policy `{options.policy}`. Load of the machine's {os.cpu_count()} processors at the beginning: "
          f"{os.getloadavg()[0]:.1f}. `python -m bench.torch_managed` makes this page.", file=out)
    for case in options.cases.split(","):
        run(case, options.rounds, options.policy, out)


if __name__ == "__main__":
    main()
