"""What kernels take beside the arena is small, however large their operands are and however these lie: memory that is
not in the budget is counted here, in the process."""

import tracemalloc

import numba
import numpy as np
import pytest

from minidl import Runtime, nn, ops
from minidl.runtime import parameter

MIB = 1 << 20
BYTES = 4 * MIB  # of an operand
MOST = 1.0 * MIB  # of temporaries, for each thread


def _statistics(channels):
    gamma, beta, mean, var = (parameter((channels,), requires_grad=n < 2) for n in range(4))
    for tensor, value in zip((gamma, beta, mean, var), (1.0, 0.0, 0.0, 1.0), strict=True):
        tensor.fill_(value)
    return gamma, beta, mean, var


def _batch_norm(runtime, **options):
    x = runtime.tensor(None, shape=(1, 8, 256, 512))
    x.requires_grad = True
    ops.fill_(x, 0.5)
    residual = {"residual": x} if options.get("added") else {}
    y = ops.batch_norm(x, *_statistics(8), training=True, relu=options.get("relu", False), **residual)
    return y.sum()  # its gradient is one number, expanded


def _attention(runtime):
    q, k, v = (runtime.tensor(None, shape=(1, 512, 2048)) for _ in range(3))
    for tensor in (q, k, v):
        tensor.requires_grad = True
        ops.fill_(tensor, 0.01)
    return ops.scaled_dot_product_attention(q, k, v, heads=16).sum()


def _linear(runtime):
    layer = nn.Linear(512, 512)
    x = runtime.tensor(None, shape=(2048, 512))
    ops.fill_(x, 0.01)
    x.requires_grad = True
    return layer(x).sum()


def _softmax(runtime):
    x = runtime.tensor(None, shape=(2048, 512))
    ops.fill_(x, 0.01)
    x.requires_grad = True
    return ops.softmax(x).sum()


CASES = {"batch norm": _batch_norm, "batch norm with relu": lambda runtime: _batch_norm(runtime, relu=True),
         "batch norm with addition and relu": lambda runtime: _batch_norm(runtime, relu=True, added=True),
         "attention": _attention, "linear": _linear, "softmax": _softmax}


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_of_an_expanded_value_is_computed_in_memory_that_is_counted(case, one_thread):
    with Runtime("cpu", policy="none", memory_budget=40 * BYTES, host_memory=0) as runtime:
        CASES[case](runtime).backward()  # compiles what it uses, which takes memory
        loss = CASES[case](runtime)
        loss.numpy()
        tracemalloc.start()
        try:
            loss.backward()
            full = ops.full((1,), 1.0)
            full.numpy()  # all has been computed
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MOST * numba.config.NUMBA_NUM_THREADS, f"{case}: {peak / MIB:.1f} MiB"


def test_what_numpy_allocates_is_seen():
    tracemalloc.start()
    array = np.empty(BYTES, np.uint8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak >= array.nbytes
