"""Fused operations give the bits of the separate ones, forward and backward."""

from functools import cache

import numpy as np
import pytest
from networks import differences, train

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


# Convolutions ------------------------------------------------------------------------------------------------------
# x, w, stride, padding: products of columns, and of tiles; pointwise; strided, with positions that no window covers
CONVS = [((2, 3, 6, 7), (5, 3, 3, 3), 1, 1), ((1, 64, 16, 16), (128, 64, 3, 3), 1, 1),
         ((3, 4, 5, 5), (6, 4, 1, 1), 1, 0), ((2, 3, 8, 6), (4, 3, 3, 2), 2, 0)]


def convolved(x, w, stride, padding, *, fused, bias):
    """What a convolution with ReLU gives, and all gradients, where x goes another way too; the calls; the peak."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(x), rng.standard_normal(w)] + [rng.standard_normal(w[:1])] * bias
    settings = {"policy": "none", "memory_budget": "16MiB", "host_memory": 0, "poisoned": True}
    with Runtime(device="cpu:virtual", switches=Switches(fused=fused), **settings) as runtime, runtime.iteration():
        first, *others = leaves = [leaf(runtime, a) for a in arrays]
        halved = first * 0.5
        y = ops.conv2d(halved, *others, stride=stride, padding=padding, relu=True)
        value = y.numpy()
        y = ops.concat([y.reshape((-1,)), halved.reshape((-1,))], 0)
        y.backward(runtime.tensor(rng.standard_normal(y.shape).astype(np.float32)))
        return [value, *(t.grad.numpy() for t in leaves)], runtime.trace().calls, runtime.stats().peak_bytes


@pytest.mark.default(bias=[True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shapes", CONVS, ids=str)
def test_a_convolution_with_relu_has_the_bits_and_the_memory_of_the_separate_calls(shapes, bias):
    separate, calls, peak = convolved(*shapes, fused=False, bias=bias)
    fused, fused_calls, fused_peak = convolved(*shapes, fused=True, bias=bias)
    for one, other in zip(separate, fused, strict=True):
        assert one.tobytes() == other.tobytes()
    assert 0.2 < (fused[0] > 0).mean() < 0.8
    names = [c.op for c in calls]
    assert len(calls[names.index("relu")].donated) == 1  # in place
    names[names.index("conv2d"):names.index("relu") + 1] = ["conv2d_relu"]
    assert [c.op for c in fused_calls] == names and fused_peak == peak
    for called in (calls, fused_calls):  # the gradient is added onto what came the other way
        assert [len(c.inputs) for c in called if c.op == "conv2d_dgrad"] == [3]


@cache
def apart(precision):
    return train("vgg", steps=3, switches=Switches(fused=False), precision=precision)


@pytest.mark.default(policy=["recompute"], precision=["bf16"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_training_with_fused_convolutions_under_pressure_ends_in_the_bits_of_separate_ones(policy, precision):
    reference = apart(precision)
    outcome = train("vgg", steps=3, policy=policy, memory_budget=reference.demand.unmanaged_peak_bytes // 2,
                    precision=precision)
    assert differences(outcome, reference) == []
    moved = outcome.stats.swapped_out_bytes if policy == "passive" else outcome.stats.recomputed_bytes
    assert moved > 0
