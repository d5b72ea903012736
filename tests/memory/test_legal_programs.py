"""Legal programs end under every policy and budget with the unmanaged bits; each is as short as it was found.

Memory is so short that what a write forces to be replayed cannot all be on the device at once.
"""

import numpy as np
import pytest

from minidl import Runtime, policies
from minidl.ops.elementwise import relu, tanh
from minidl.ops.shape import concat
from minidl.optim import SGD
from minidl.policies.literature import SOLVERS, SYSTEMS
from minidl.runtime import parameter

MANAGED = [name for name in policies.names() if name not in ("none", "exact", *(SYSTEMS.keys() - SOLVERS))]


def _parameters(*values):
    found = [parameter((1,)) for _ in values]
    for tensor, value in zip(found, values, strict=True):
        tensor.fill_(value)
    return found


def _two_held_values(runtime):
    """``s`` is replayed for the update, then dropped while its input is there, which is then written over."""
    p, q = _parameters(0.5, -1.5)
    optimizer = SGD([p, q], lr=0.1)
    with runtime.iteration():
        x = p * q
        s, r = tanh(x), relu(p)
        loss = tanh(x).sum() + tanh(r).sum() + tanh(p).sum()
        del x
        loss.backward()
        optimizer.step()
    return [tensor.numpy() for tensor in (p, q, s, r)]


def _a_held_square(runtime):
    """As above, through a value that is read twice."""
    q, p = _parameters(-1.5, 0.5)
    optimizer = SGD([p, q], lr=0.1)
    with runtime.iteration():
        r = 1.25 - q
        t = r * 1.0
        u = t * t
        loss = tanh(concat([r, u], 0) * 2.0).sum() + tanh(q * 2.0).sum()
        del r, t
        loss.backward()
        optimizer.step()
    return [tensor.numpy() for tensor in (p, q, u)]


@pytest.mark.parametrize("policy", MANAGED)
@pytest.mark.parametrize("program", [_two_held_values, _a_held_square])
def test_what_a_write_forces_to_be_replayed_is_there_when_the_write_comes(program, policy):
    with Runtime("cpu", memory_budget=1 << 20, policy="none") as runtime:
        expected = program(runtime)
    for budget in range(1024, 4096, 256):
        with Runtime("cpu", memory_budget=budget, policy=policy, host_memory=1 << 20, poisoned=True) as runtime:
            found = program(runtime)
            runtime.check()
        for want, got in zip(expected, found, strict=True):
            assert np.array_equal(want, got), f"{policy} at {budget}"
