"""A recorded step of a small training, for tests of pages and exports."""

from functools import cache
from typing import Any

import pytest

from minidl import Runtime, models
from minidl.device import Device
from minidl.meta import int64
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.report.layers import layer_names
from minidl.view.recorder import StepRecorder
from minidl.view.recording import Recording

VERBS = ("launch", "move", "copy_out", "copy_in")
BATCH = 32
Ledger = list[tuple[int, dict[int, int]]]  # at each piece of work: bytes in use, and blocks as address -> bytes


def recorded(device: str | Device = "sim:p100", *, policy: str = "passive", budget: str = "60MiB", steps: int = 3,
             ledger: Ledger | None = None, monkeypatch: pytest.MonkeyPatch | None = None,
             **options: Any) -> tuple[Recording, Runtime, int]:
    """Return the recording of a small training's last step, its runtime, and the bytes that it copied to the host."""
    with Runtime(device, policy=policy, memory_budget=budget, **options) as runtime:
        model = models.create("resnet18", num_classes=10)
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step() -> None:
            with runtime.iteration():
                optimizer.zero_grad()
                images = runtime.tensor(None, shape=(BATCH, 3, 32, 32))
                loss = cross_entropy(model(images), runtime.tensor(None, shape=(BATCH,), dtype=int64))
                loss.backward()
                optimizer.step()

        with layer_names(model, runtime.executor) as names:
            for _ in range(steps):
                step()
            if ledger is not None and monkeypatch is not None:
                keep_ledger(runtime, ledger, monkeypatch)
            recorder, before = StepRecorder(runtime), runtime.stats()
            with recorder.recording():
                step()
            found = recorder.recorded
            assert found is not None
            subjects = found.subjects(names.of(found.trace), names.owned)
        swapped = runtime.stats().since(before).swapped_out_bytes
    return (Recording("a step", runtime.budget_bytes, 0, runtime.host_bytes, found.trace, subjects, found.events,
                      found.stays), runtime, swapped)


@cache
def paged() -> Recording:
    """Return the recording of a step in passive mode."""
    return recorded()[0]


def keep_ledger(runtime: Runtime, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every method of a device record the arena's contents when it is called."""
    kind = type(runtime.device)
    for verb in VERBS:
        real = getattr(kind, verb)

        def noted(device: Device, *arguments: Any, real: Any = real) -> int:
            arena = runtime.memory.arena
            ledger.append((arena.used_bytes, {b.offset: b.size for b in arena.blocks() if b.owner is not None}))
            position: int = real(device, *arguments)
            return position

        monkeypatch.setattr(kind, verb, noted)
