"""Train a small network on the CPU in half of the memory that it needs: python examples/training_loop.py"""

import numpy as np

import minidl
from minidl import nn
from minidl.ops import cross_entropy
from minidl.optim import SGD
from minidl.outside.units import format_bytes

BATCH, SIDE, CLASSES, STEPS = 64, 32, 4, 30


def stripes(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of noisy images with stripes, and labels for the stripes' direction."""
    labels = random.integers(0, CLASSES, BATCH)
    angles = (labels * np.pi / CLASSES)[:, None, None]
    row, column = np.mgrid[:SIDE, :SIDE]
    waves = np.sin(row * np.cos(angles) + column * np.sin(angles) + random.uniform(0, 6, (BATCH, 1, 1)))
    return (waves + random.normal(0, 1, waves.shape)).astype("float32")[:, None], labels


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, CLASSES))


def step(runtime: minidl.Runtime, model: nn.Module, optimizer: SGD, batch: tuple[np.ndarray, np.ndarray]) -> float:
    images, labels = (runtime.tensor(array) for array in batch)
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# A dry run on a simulated device finds a step's peak from shapes alone, without computing values.
random = np.random.default_rng(0)
with minidl.Runtime(device="sim:p100", policy="none") as simulator:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    needed = simulator.dry_run(lambda: step(simulator, model, optimizer, stripes(random))).unmanaged_peak_bytes
print(f"a step needs {format_bytes(needed)}; it gets {format_bytes(needed // 2)}")

with minidl.Runtime(device="cpu", memory_budget=needed // 2, policy="auto") as runtime:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(STEPS):
        before = runtime.stats()
        with runtime.iteration():  # marks an iteration: its calls repeat each time, so the policy can plan for them
            loss = step(runtime, model, optimizer, stripes(random))
        moved = runtime.stats().since(before)
        print(f"step {number:2}: loss {loss:.4f}, swapped out {format_bytes(moved.swapped_out_bytes)}, "
              f"computed again {format_bytes(moved.recomputed_bytes)}, peak {format_bytes(moved.peak_bytes)}")
