"""A step as a picture: what was recorded is what the streams did; without matplotlib it is said what to install."""

import sys

import numpy as np
import pytest

from bench.support.timeline import COLOURS, COPIES, FAMILIES, OTHERS, SLIDES, Bar, draw, family, record
from minidl import Runtime, nn
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.errors import UserError
from minidl.ops import cross_entropy
from minidl.optim import SGD


def small_step(runtime):
    """A step of a small network, and nothing of it kept."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
                          nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, 10))
    optimizer = SGD(model.parameters(), lr=0.1)

    def step():
        with runtime.iteration():
            optimizer.zero_grad()
            images = runtime.tensor(np.full((8, 1, 16, 16), 0.5, np.float32))
            logits = model(images)
            del images
            cross_entropy(logits, runtime.tensor(np.zeros(8, np.int64))).backward()
            optimizer.step()
    return step


def test_every_operation_and_every_copy_of_a_step_becomes_a_bar_on_its_stream_in_the_order_of_issue():
    # An activation takes 65,536 bytes: 272 KiB are four of them, which no call needs, but several are kept for later.
    with Runtime("cpu", memory_budget="272KiB", host_memory="4MiB", policy="passive") as runtime:
        step = small_step(runtime)
        step()
        before = runtime.stats()
        bars = record(runtime, step)
        grown = runtime.stats().since(before)
    assert grown.swapped_out_bytes and grown.swapped_in_bytes
    streams = {stream: [bar for bar in bars if bar.stream == stream] for stream in (COMPUTE, COPY_OUT, COPY_IN)}
    assert all(streams.values())
    for stream, row in streams.items():
        assert all(0 <= bar.start_s <= bar.end_s for bar in row)
        assert all(a.end_s <= b.start_s for a, b in zip(row, row[1:], strict=False))
        assert {bar.family for bar in row} <= (COLOURS.keys() - {COPIES} if stream == COMPUTE else {COPIES})
    assert {"convolutions", "products", "normalisation", "optimizer", OTHERS} <= {b.family for b in streams[COMPUTE]}
    views = 2  # flatten and its gradient launch nothing
    assert sum(bar.family != SLIDES for bar in streams[COMPUTE]) == grown.calls - views


def test_recording_leaves_the_device_as_it_was_even_if_the_step_fails():
    def failing():
        raise ZeroDivisionError

    with Runtime("cpu", memory_budget="1MiB", host_memory=0) as runtime:
        with pytest.raises(ZeroDivisionError):
            record(runtime, failing)
        assert "launch" not in vars(runtime.device) and runtime.device.streams.spans is None


def test_a_device_without_worker_threads_has_no_timeline():
    with Runtime("sim:p100") as runtime, pytest.raises(UserError, match="sim:p100 has none"):
        record(runtime, lambda: None)


def test_an_operation_is_drawn_as_its_family():
    assert [family(name) for name in ("conv2d_wgrad", "matmul", "batch_norm_relu", "adam_", "tanh")] == [
        "convolutions", "products", "normalisation", "optimizer", OTHERS]
    assert {*FAMILIES, OTHERS, SLIDES, COPIES} == COLOURS.keys()


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r'pip install "minidl\[viz\]"'):
        draw([Bar(COMPUTE, 0.0, 1.0, OTHERS)], "a step", "step.png")
