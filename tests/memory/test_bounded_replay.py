"""On-demand recomputation has a bound: what would take longer to make again than to copy is swapped.

The program is a tree of LSTM cells: hundreds of small calls, each of which many others hang together with.
"""

import pytest
from strangers import tree

from minidl import Runtime
from minidl.lab import cell
from minidl.lab.inferred import completed
from minidl.memory.leftovers import PATIENCE
from minidl.memory.replay import Replay
from minidl.ops import add, linear_, mul, sigmoid, tanh
from minidl.runtime import parameter

WIDTH, DEPTH = 32, 4


def _cell(gates, left, right):
    (h1, c1), (h2, c2) = left, right
    i, f, g, o, u = (add(linear_(h1, a), linear_(h2, b)) for a, b in gates)
    c = add(mul(sigmoid(i), tanh(u)), add(mul(sigmoid(f), c1), mul(sigmoid(g), c2)))
    return mul(sigmoid(o), tanh(c)), c


def _tree(gates, leaves, depth=DEPTH):
    if not depth:
        x = leaves.pop()
        return tanh(x), x * 0.5
    return _cell(gates, _tree(gates, leaves, depth - 1), _tree(gates, leaves, depth - 1))


def _step(runtime):
    gates = [(parameter((WIDTH, WIDTH)), parameter((WIDTH, WIDTH))) for _ in range(5)]
    for a, b in gates:
        a.fill_(0.05)
        b.fill_(0.02)
    with runtime.iteration():
        leaves = [runtime.tensor(None, shape=(1, WIDTH)) for _ in range(1 << DEPTH)]
        h, _ = _tree(gates, leaves)
        h.mean().backward()


@pytest.mark.parametrize("policy", ["recompute", "dtr-swap"])
@pytest.mark.parametrize("device", ["cpu:virtual", "sim:p100"])
def test_a_tree_is_not_computed_over_and_over(policy, device, monkeypatch):
    replayed = []
    replay_call = Replay.replay_call
    monkeypatch.setattr(Replay, "replay_call", lambda self, call, *rest: (replayed.append(call.op.name),
                                                                           replay_call(self, call, *rest))[1])
    with Runtime(device, policy="none", memory_budget=1 << 24) as runtime:
        _step(runtime)
        calls, peak = runtime.stats().calls, runtime.stats().peak_bytes
    with Runtime(device, policy=policy, memory_budget=peak * 2 // 5 // 256 * 256, host_memory=1 << 24) as runtime:
        _step(runtime)
        assert runtime.stats().swapped_out_bytes > 0
    assert len(replayed) < 1.2 * calls  # without the bound 2.2 and 1.6 times as many under recompute


def test_replays_within_replays_end_though_a_value_is_computed_over_and_over(monkeypatch):
    """Three tenths of the peak of an uneven tree, without a host: each replay drops what others wait for."""
    trace, replayed = completed(tree(1)), []
    replay_call = Replay.replay_call
    monkeypatch.setattr(Replay, "replay_call", lambda self, call, *rest: (replayed.append(call.op.name),
                                                                           replay_call(self, call, *rest))[1])
    row = cell.run("tree", trace, cell.Machine(host_bytes=0), "dtr", 0.3, steps=1)
    assert row.status.startswith("no room") and len(replayed) < (1 + PATIENCE + 4) * len(trace.calls)
