"""On demand, the host's cost of a call does not grow with the size of its program.

The cost is the number of lines of ``minidl/memory`` that Python executes for a call. It is compared between a program
and one of four times its size. Other work on the machine does not change it.
"""

import os
import random
import sys
from collections import Counter

import pytest

import minidl.memory
from minidl import Runtime
from minidl.memory import neighbourhood, one_hole, stalest
from minidl.ops import linear_
from minidl.ops.elementwise import relu
from minidl.optim import SGD
from minidl.runtime import parameter

HERE = os.path.dirname(minidl.memory.__file__)
# Prices have as many classes as magnitudes: few layers do not have all of them, and more have a few more.
LAYERS = dict.fromkeys(("dtr-swap", "auto", "dtr"), (70, 280))
WIDTHS = {
    "one width": lambda count: [256] * count,
    "eight widths": lambda count: random.Random(1).choices((64, 96, 128, 192, 256, 320, 384, 512), k=count),
    "each its own width": lambda count: [64 + 37 * number % count for number in range(count)],
}


def _perceptron(runtime, widths):
    weights = [parameter((after, before)) for before, after in zip(widths, widths[1:], strict=False)]
    optimizer = SGD(weights, lr=0.01)

    def step():
        x = runtime.tensor(None, shape=(64, widths[0]))
        for weight in weights:
            x = relu(linear_(x, weight))
        loss = x.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return step


def _lines_a_call(layers, widths, share, host, policy):
    """Of a second step, in so much of what lies between the floor and the peak of the device, and of the peak on the
    host."""
    widths = WIDTHS[widths](layers + 1)
    with Runtime("sim:p100", policy="none", memory_budget="1GiB") as runtime:
        need = runtime.dry_run(_perceptron(runtime, widths))
    between = need.unmanaged_peak_bytes - need.largest_op_bytes
    lines = Counter()

    def line(frame, event, _):
        if event == "line":
            lines[os.path.basename(frame.f_code.co_filename)] += 1
        return line

    with Runtime("sim:p100", policy=policy, memory_budget=need.largest_op_bytes + int(between * share),
                 host_memory=int(need.unmanaged_peak_bytes * host)) as runtime:
        step = _perceptron(runtime, widths)
        with runtime.iteration():
            step()
        before, traced = runtime.tracker.sequence, sys.gettrace()
        sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(HERE) else None)
        try:
            with runtime.iteration():
                step()
        finally:
            sys.settrace(traced)
        calls = runtime.tracker.sequence - before
        assert runtime.stats().swapped_out_bytes or runtime.stats().recomputed_bytes
    return {name: count / calls for name, count in lines.items()}


@pytest.mark.default(share=[0.3], host=[9.0], policy=["passive", "dtr-swap"])
@pytest.mark.sampled(policy=["passive", "lru", "dtr-swap", "dtr"])
@pytest.mark.parametrize(("widths", "share", "host", "policy"), [
    ("one width", 0.0, 9.0, "passive"),  # a replay of the whole program in each update
    ("eight widths", 0.6, 9.0, "passive"),  # memory in many pieces
    ("each its own width", 0.3, 9.0, "passive"),  # as many sizes as tensors
    ("eight widths", 0.3, 0.8, "passive"),  # and a host that is full
    *(("eight widths", 0.9 if policy == "dtr" else 0.3, 9.0, policy) for policy in ("lru", "dtr-swap", "auto", "dtr")),
    ("each its own width", 0.3, 9.0, "lru")])
def test_a_call_takes_no_more_lines_in_a_program_of_four_times_the_size(widths, share, host, policy, monkeypatch):
    monkeypatch.setattr(one_hole, "NEAR", 4)  # reached in programs of this size, too
    monkeypatch.setattr(stalest, "FEW", 8)
    monkeypatch.setattr(stalest, "PER_CLASS", 2)
    monkeypatch.setattr(neighbourhood, "MOST_WALKED", 8)
    small, large = (_lines_a_call(layers, widths, share, host, policy)
                    for layers in LAYERS.get(policy, (35, 140)))
    assert sum(large.values()) < (1.6 if policy in LAYERS else 1.4) * sum(small.values()), sorted(
        (round(lines - small.get(name, 0.0)), name) for name, lines in large.items())[-3:]
