"""Tensors in slices: every operation that says how it is cut gives what the whole gives, forward and backward; training
has the same bits for one number of slices under every policy and budget, and float32's agreement between numbers."""

import numpy as np
import pytest

from bench.support.kernel_cases import CASES, OPS
from minidl import Runtime, nn, optim, parameter
from minidl.autograd import no_grad
from minidl.dispatch import apply_all
from minidl.errors import OutOfMemory, UserError
from minidl.memory.storage import IN
from minidl.ops.conv import conv2d
from minidl.ops.loss import cross_entropy
from minidl.ops.update import upload_
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.slicer import slicer_of

CUT = [case for case in CASES if OPS[case.name].slices is not None and not OPS[case.name].view]
COUNTS = (1, 2, 3, 7)


def outputs_of(case, inputs, count):
    """What an operation makes of arrays: those that it takes slice by slice uploaded so, the others whole."""
    op = OPS[case.name]
    rule = op.slices([_described(a) for a in inputs], case.attrs, [True] * len(inputs))
    with Runtime("cpu", memory_budget="16MiB", host_memory=0, policy="none", slices=count) as runtime, no_grad():
        tensors = []
        for i, array in enumerate(inputs):
            if rule is not None and rule.along[i]:
                tensors.append(runtime.tensor(array))
            else:
                whole = parameter(array.shape, dtype=_described(array).dtype)
                upload_(whole, array)
                tensors.append(whole)
        results = apply_all(op, *tensors, **case.attrs)
        written = [tensors[i] for i in op.mutates(len(tensors))] if op.mutates is not None else []
        values = [t.numpy() for t in (*results, *written)]
        slicer = slicer_of(runtime.executor)
        return values, any(isinstance(t.storage, Logical) for t in tensors) and not slicer.joined


def _described(array):
    from minidl.meta import DTYPES, meta
    return meta(array.shape, DTYPES[array.dtype.name])


@pytest.mark.default(count=[2])
@pytest.mark.parametrize("count", COUNTS)
def test_an_operation_in_slices_gives_what_it_gives_whole(count):
    cut = set()
    for case in CUT:
        inputs = case.inputs("float64")
        whole = outputs_of(case, inputs, 1)[0]
        values, was_cut = outputs_of(case, inputs, count)
        cut |= {case.name} if was_cut else set()
        for value, right in zip(values, whole, strict=True):
            scale = max(1.0, float(np.max(np.abs(right), initial=0, where=np.isfinite(right))))
            np.testing.assert_allclose(value, right, rtol=1e-11, atol=1e-12 * scale, err_msg=f"{case} {case.attrs}")
    said = {op.name for op in OPS.values() if op.slices is not None and not op.view}
    assert said == {case.name for case in CUT} and len(said) > 45
    assert count != 2 or cut == said  # each in slices at least once


def network():
    """Statistics, a join of branches, dropout, pooling: all kinds of operations on images."""
    class Net(nn.Module):
        def __init__(self):
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.second = nn.Conv2d(8, 8, 3, padding=1)
            self.other = nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.2)
            self.last = nn.Linear(8, 5)

        def forward(self, x):
            x = self.norm(self.first(x)).relu()
            y = self.other(self.second(x)) + x
            y = nn.MaxPool2d(2)(y.relu())
            return self.last(self.drop(nn.Flatten()(nn.AdaptiveAvgPool2d(1)(y))))
    return Net()


def train(count, *, policy="none", budget="16MiB", steps=3, batch=10, host="1GiB"):
    """Losses, all state, and the peak, of a few steps; one label is to be ignored."""
    with Runtime("cpu", memory_budget=budget, policy=policy, host_memory=host, slices=count, seed=3,
                 poisoned=True) as runtime:
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rng = np.random.default_rng(0)
        images = rng.standard_normal((batch, 3, 8, 8)).astype("float32")
        labels = rng.integers(0, 5, batch)
        labels[batch // 3] = -100
        losses = []
        for _ in range(steps):
            with runtime.iteration():
                loss = cross_entropy(model(runtime.tensor(images)), runtime.tensor(labels))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                runtime.check()
        return losses, model.state_dict(), runtime.stats().peak_bytes, slicer_of(runtime.executor)


@pytest.fixture(scope="module")
def references():
    return {count: train(count, steps=4) for count in (1, 2, 3, 7)}


@pytest.mark.parametrize("count", (2, 3, 7))
def test_the_numbers_of_slices_agree_to_rounding_and_cut_every_operation(references, count):
    losses, state, _, slicer = references[count]
    right, whole, _, _ = references[1]
    np.testing.assert_allclose(losses, right, rtol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert not slicer.joined


@pytest.mark.default(policy=["auto", "passive", "recompute"])
@pytest.mark.parametrize("policy", ["auto", "capuchin", "dtr-swap", "lru", "passive", "recompute"])
def test_one_number_of_slices_has_the_same_bits_under_every_policy_and_budget(references, policy):
    losses, state, peak, _ = references[3]
    managed = 0
    for share in (0.55, 0.7, 0.85, 1.0):
        try:
            seen, values, high, _ = train(3, policy=policy, budget=int(peak * share) // 256 * 256, steps=4)
        except OutOfMemory:
            continue
        managed += share < 1
        assert seen == losses and high <= peak * share
        for name, value in values.items():
            assert value.tobytes() == state[name].tobytes(), (name, share)
    assert managed >= 2


def test_slices_fit_where_the_largest_operation_does_not(references):
    with pytest.raises(OutOfMemory):
        train(1, policy="passive", budget=128 << 10, steps=1, batch=30)
    losses = train(10, policy="passive", budget=128 << 10, steps=2, batch=30)[0]
    np.testing.assert_allclose(losses, train(1, steps=2, batch=30)[0], rtol=1e-5)


def test_without_statistics_a_slice_goes_forward_and_backward_before_the_next():
    """Exact accumulation: what the first slice keeps for its gradient is gone when the second begins."""
    with Runtime("cpu", memory_budget="16MiB", policy="none", slices=4) as runtime:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        names = []
        runtime.executor.inspect = lambda name, inputs, outputs: names.append(name)
        with runtime.iteration():
            loss = cross_entropy(model(runtime.tensor(np.ones((8, 64), "float32"))), runtime.tensor(np.arange(8) % 4))
            assert "linear" not in names  # nothing needs a value yet
            loss.backward()
        order = [name for name in names if name in ("linear", "linear_wgrad")]
        assert order == (["linear"] * 3 + ["linear_wgrad"] * 3) * 4
        assert "contiguous" not in names  # the sums over slices are the gradients: no copy of them is made


def test_values_in_slices_are_read_shared_and_written_as_one():
    with Runtime("cpu", memory_budget="16MiB", policy="none", slices=3) as runtime:
        array = np.arange(35.0, dtype="float32").reshape(7, 5)
        x = runtime.tensor(array)
        assert [m.parts[0].meta.shape for m in (x.storage,)] == [(3, 5)] and x.shape == (7, 5)
        y = x * 2.0
        np.testing.assert_array_equal((y + x).numpy(), 3 * array)
        np.testing.assert_array_equal(y.narrow(1, 1, 2).numpy(), 2 * array[:, 1:3])
        np.testing.assert_array_equal(y.narrow(0, 2, 4).numpy(), 2 * array[2:6])  # joined
        assert slicer_of(runtime.executor).joined == {"narrow": 1}
        np.testing.assert_array_equal(y.permute((1, 0)).numpy(), 2 * array.T)
        np.testing.assert_array_equal(y.reshape((35,)).numpy(), 2 * array.ravel())
        np.testing.assert_array_equal(np.from_dlpack(y), 2 * array)
        y.add_(x)
        y.fill_(1.5)
        y.add_(x)
        np.testing.assert_array_equal(y.numpy(), array + 1.5)
        np.testing.assert_allclose(x.sum((0,)).numpy(), array.sum(0))
        np.testing.assert_allclose(float(x.mean()), array.mean(), rtol=1e-6)
        assert "3 slices" in y.storage.named() and y.status is IN


def test_what_waits_has_the_values_from_before_a_later_write():
    with Runtime("cpu", memory_budget="16MiB", policy="none", slices=3) as runtime:
        array = np.arange(1.0, 36.0, dtype="float32").reshape(7, 5)
        x, factor = runtime.tensor(array), parameter((5,))
        factor.fill_(3.0)
        doubled, tripled = x * 2.0, x * factor
        x.fill_(0.0)
        np.testing.assert_array_equal(doubled.numpy(), 2 * array)
        np.testing.assert_array_equal(tripled.numpy(), 3 * array)
        again = tripled * factor
        factor.fill_(0.0)  # a whole tensor, which no slicer is asked about
        np.testing.assert_array_equal(again.numpy(), 9 * array)


def test_gradients_arrive_at_leaves_in_slices_and_at_whole_ones_once_whatever_was_there():
    rng = np.random.default_rng(1)
    array, weight = rng.standard_normal((6, 2, 5, 5)).astype("f4"), rng.standard_normal((3, 2, 3, 3)).astype("f4")

    def gradients(count):
        with Runtime("cpu", memory_budget="16MiB", host_memory=0, policy="none", slices=count) as runtime:
            x, w = runtime.tensor(array), parameter(weight.shape)
            upload_(w, weight)
            x.requires_grad = True
            for _ in range(2):
                y = conv2d(x, w, padding=1)
                (y * y).sum().backward()
            return x.grad.numpy(), w.grad.numpy()
    for mine, whole in zip(gradients(4), gradients(1), strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-4, atol=1e-4)


def test_what_fails_in_a_queue_has_no_value_and_everything_else_stays():
    with Runtime("cpu", memory_budget="64KiB", policy="none", slices=2) as runtime:
        kept = runtime.tensor(np.ones((4, 3), "float32"))
        large = runtime.tensor(np.ones((4, 1500), "float32"))
        made = large * 2.0
        other = made + large
        with pytest.raises(OutOfMemory):
            (other * 3.0).numpy()
        with pytest.raises(UserError, match="has no value: OutOfMemory"):
            other.numpy()
        np.testing.assert_array_equal((kept + kept).numpy(), 2 * np.ones((4, 3)))
        runtime.check()
    with pytest.raises(UserError, match="1 slice or more, not 0"):
        Runtime("cpu", slices=0)
