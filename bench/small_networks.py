"""Small networks on the CPU beside PyTorch: seconds of a training step, in turns within one process.

    python -m bench.small_networks > bench/results/small_networks.md

Both libraries use one thread. A turn is one step of each; the table has the processor time of the process, which other
programs on the machine disturb least: the least step of each, and the median of the turns' ratios. minidl's time
contains that of its worker thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import numba
import numpy as np

import minidl
from minidl import Runtime

TURNS, WARM = 40, 4
LENGTH, BATCH, VOCABULARY = 35, 20, 200
Step = Callable[[], float]


def words(library: Any, kind: str, width: int) -> Step:
    """A word model as PyTorch's example has it: an embedding, two recurrent layers, a linear layer."""
    nn = library.nn
    table, last = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
    layers = getattr(nn, kind)(width, width, 2)
    parameters = [*table.parameters(), *layers.parameters(), *last.parameters()]
    optimizer = library.optim.SGD(parameters, lr=0.1)
    numbers = np.random.default_rng(0).integers(0, VOCABULARY, (LENGTH, BATCH))

    def step() -> float:
        x = library.tensor(numbers)
        optimizer.zero_grad()
        y = last(layers(table(x))[0]).reshape(-1, VOCABULARY)
        loss = nn.functional.cross_entropy(y, x.reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss.item())
    return step


def mlp(library: Any) -> Step:
    """Three layers of width 400 on 64 images of 784 pixels."""
    nn = library.nn
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    optimizer = library.optim.Adam(net.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    images, classes = rng.random((64, 784), np.float32), rng.integers(0, 10, 64)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(library.tensor(images)), library.tensor(classes))
        loss.backward()
        optimizer.step()
        return float(loss.item())
    return step


def gcn(library: Any) -> Step:
    """Two graph convolutions (Kipf & Welling 2017) on 600 nodes of 256 features, with a dense adjacency matrix."""
    nn, rng = library.nn, np.random.default_rng(0)
    first, second = nn.Linear(256, 16), nn.Linear(16, 7)
    optimizer = library.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    links = (rng.random((600, 600)) < 0.01).astype(np.float32) + np.eye(600, dtype=np.float32)
    graph = library.tensor(links / links.sum(1, keepdims=True))
    nodes, classes = library.tensor(rng.random((600, 256), np.float32)), library.tensor(rng.integers(0, 7, 600))

    def step() -> float:
        optimizer.zero_grad()
        hidden = (graph @ first(nodes)).relu()
        loss = nn.functional.cross_entropy(graph @ second(hidden), classes)
        loss.backward()
        optimizer.step()
        return float(loss.item())
    return step


NETWORKS: dict[str, Callable[[Any], Step]] = {
    **{f"{kind}, width {width}": partial(words, kind=kind, width=width)
       for kind in ("LSTM", "GRU") for width in (32, 200)},
    "MLP": mlp, "GCN": gcn}


def row(name: str, torch: Any) -> str:
    """Return a line of the table."""
    with Runtime("cpu", memory_budget="512MiB", policy="none"):
        steps = [NETWORKS[name](library) for library in (minidl, torch)]
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(WARM + TURNS):
            for step, taken in zip(steps, seconds, strict=True):
                start = process_time()
                step()
                if turn >= WARM:
                    taken.append(process_time() - start)
    ratio = statistics.median(a / b for a, b in zip(*seconds, strict=True))
    return f"| {name} | {min(seconds[0]) * 1e3:.2f} | {min(seconds[1]) * 1e3:.2f} | {ratio:.2f} |"


def main() -> None:
    """Print the table."""
    import torch

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    print(f"""# Small networks beside PyTorch {torch.__version__.partition("+")[0]}, on one thread

`python -m bench.small_networks > bench/results/small_networks.md`: processor time of a training step, {TURNS} turns.
The recurrent networks have two layers, {LENGTH} steps and a batch of {BATCH}.

| network | minidl, ms | PyTorch, ms | ratio, median of the turns |
|---|--:|--:|--:|""")
    for name in NETWORKS:
        print(row(name, torch), flush=True)


if __name__ == "__main__":
    main()
