"""Fused operations give the bits of the separate ones, forward and backward."""

import numpy as np
import pytest

from minidl import Runtime, ops
from minidl.memory.switches import Switches

SHAPES = [(2, 3), (4, 1, 5), (3, 2, 4, 4), (2, 70, 3, 3), (33, 2, 1, 17)]


def leaf(runtime, array):
    tensor = runtime.tensor(array.astype(np.float32))
    tensor.requires_grad = True
    return tensor


def results(shape, *, fused, residual, training, seed=0):
    """The output, all gradients and the running statistics, and the names of the operations that ran."""
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape), *rng.standard_normal((2, shape[1]))]
    if residual:
        arrays.append(rng.standard_normal(shape))
    slope = rng.standard_normal(shape)
    settings = {"policy": "none", "memory_budget": "16MiB", "host_memory": 0, "poisoned": True}
    with Runtime(device="cpu:virtual", switches=Switches(fused=fused), **settings) as runtime, runtime.iteration():
        x, gamma, beta, *rest = (leaf(runtime, a) for a in arrays)
        mean, var = runtime.tensor(np.zeros(shape[1], np.float32)), runtime.tensor(np.ones(shape[1], np.float32))
        y = ops.batch_norm(x, gamma, beta, mean, var, training=training, relu=True,
                           residual=rest[0] if residual else None)
        value = y.numpy()
        y.backward(runtime.tensor(slope.astype(np.float32)))
        gradients = [t.grad.numpy() for t in (x, gamma, beta, *rest)]
        return [value, *gradients, mean.numpy(), var.numpy()], {call.op for call in runtime.trace().calls}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_with_relu_has_the_bits_of_the_separate_calls(shape, residual, training):
    separate, names = results(shape, fused=False, residual=residual, training=training)
    fused, fused_names = results(shape, fused=True, residual=residual, training=training)
    assert "relu" in names and "relu" not in fused_names
    for one, other in zip(separate, fused, strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_mask_of_a_fused_relu_is_mixed():
    (value, *_), _ = results((2, 70, 3, 3), fused=True, residual=False, training=True)
    assert 0.2 < (value > 0).mean() < 0.8
