"""What PyTorch's users look for: indexing, masks, new tensors, hooks, groups of parameters. Beside NumPy."""

import copy
import re

import numpy as np
import pytest

import minidl
from minidl import Runtime, UserError, nn, optim
from minidl.errors import NoSuchIndex, ShapeError
from minidl.nn.functional import layer_norm

A = np.arange(24, dtype="f4").reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def runtime():
    with Runtime("cpu:virtual", memory_budget="4MiB", poisoned=True) as made:
        yield made
        made.check()


KEYS = [0, -1, slice(1, None), (slice(None), 1), (..., 2), (None, 0), (slice(None), slice(None, None, 2), -1),
        (0, 1, 2), [0, 1], (slice(None), [2, 0]), ([0, 1], [2, 0]), (0, [1, 2]),
        (slice(None), [0, 2], [1, 1]), slice(2, 2), [],
        ([1, 0], slice(None), [1, 2]), A > 5, A[:, :, 0] > 3, np.array([[0, -1], [1, 1]]), (slice(None), [-1]), ...,
        (slice(None), np.array([True, False, True])), (slice(None), np.int64(1)), (slice(-5, 99),),
        True, False, np.True_, np.array(False), (True, 0), (slice(None), False), (None, True), (True, [0, 1]),
        (..., True), (slice(None), True, [0, 2])]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(runtime, key):
    np.testing.assert_array_equal(runtime.tensor(A)[key].numpy(), A[key])


def test_tensors_choose_as_arrays_do_and_parts_are_views(runtime):
    x, ids = runtime.tensor(A), runtime.tensor(np.array([[0, 1], [1, 1]]))
    assert (x[ids].numpy() == A[ids.numpy()]).all() and (x[x > 5].numpy() == A[A > 5]).all()
    assert (x[:, ids, 0].numpy() == A[:, ids.numpy(), 0]).all()
    assert (x[ids, ids].numpy() == A[ids.numpy(), ids.numpy()]).all()
    assert x[1:, None, ::2].tensor_id == x.tensor_id != x[[0]].tensor_id
    assert [row.shape for row in x] == [(3, 4)] * 2 and x[0, 0, 0].item() == 0.0


def test_a_boolean_is_a_mask_and_no_row_number(runtime):
    x, some = runtime.tensor(A), runtime.tensor(A).max() > 5
    assert (x[some].numpy() == A[None]).all() and x[~some].shape == (0, 2, 3, 4)
    assert x[0, 0, 0][True].tolist() == [0.0] and x[0, 0, 0][False].tolist() == []
    x.requires_grad = True
    x[True].sum().backward()
    assert (x.grad.numpy() == 1.0).all()
    for key, expected in ((False, A), (np.False_, A), (~some, A), (True, A * 0 + 9), (some, A * 0 + 9)):
        y = runtime.tensor(A)
        y[key] = 9.0
        assert (y.numpy() == expected).all()


def test_what_is_assigned_is_written_in_place(runtime):
    x, a = runtime.tensor(A), A.copy()
    x[x > 20] = -1.0
    a[a > 20] = -1.0
    x[0], a[0] = 7, 7
    x[:, 1, ::2] = x[:, 2, ::2]
    a[:, 1, ::2] = a[:, 2, ::2]
    x[..., -1] = np.arange(3.0)
    a[..., -1] = np.arange(3.0)
    assert (x.numpy() == a).all()


@pytest.mark.parametrize(("use", "error", "message"), [
    (lambda x: x[2], NoSuchIndex, "index 2 is out of range for dimension 0 of 2 elements"),
    (lambda x: x[:, [3]], IndexError, "index 3 is out of range for dimension 1 of 3 elements"),
    (lambda x: x[0, 0, 0, 0], NoSuchIndex, "4 indices for [2, 3, 4]"),
    (lambda x: x[..., ...], NoSuchIndex, "0 indices and more than one ... for [2, 3, 4]"),
    (lambda x: x[::-1], ShapeError, "steps of 1 or more, not -1"),
    (lambda x: x[1.5], UserError, "takes integers, slices, None, ... and masks, not float"),
    (lambda x: x[np.ones(1, bool)], NoSuchIndex, "a mask [1] for dimensions [2] of [2, 3, 4]"),
    (lambda x: x[..., np.ones((2, 4), bool)], IndexError, "a mask [2, 4] for dimensions [3, 4] of [2, 3, 4]"),
    (lambda x: x.__setitem__(x[:1, 0, 0] >= 0, 1.0), NoSuchIndex, "a mask [1] for dimensions [2] of [2, 3, 4]"),
    (lambda x: minidl.repeat_interleave(x, x[0, 0, :3].long(), 0), ShapeError, "takes 2 counts of 0 or more, or one"),
    (lambda x: minidl.zeros(2, -1), ShapeError, "a tensor cannot have the sizes [2, -1]"),
    (lambda x: minidl.nn.functional.conv2d(x, x[None], dilation=(1, 0)), ShapeError, "a dilation of (1, 0) is below 1"),
    (lambda x: minidl.optim.lr_scheduler.StepLR(minidl.optim.SGD([x.requires_grad_()], 0.1), 0), UserError,
     "a step size of 0 epochs is below 1"),
    (lambda x: x[x], UserError, "not Tensor DType(name='float32'"),
    (lambda x: x.__setitem__([0, 1], 1.0), UserError, "for lists and tensors of integers use where()"),
    (lambda x: -(x > 1), ShapeError, "booleans have no arithmetic; x.to(dtype)"),
    (lambda x: x * x.double(), ShapeError, "dtypes differ: float32 and float64 in mul; x.to(dtype) converts"),
    (lambda x: ~x, ShapeError, "~ is for booleans and integers, not float32[2, 3, 4]"),
    (lambda x: x & (x > 1), ShapeError, "& needs two boolean tensors, not float32 and bool; x.bool() converts"),
    (lambda x: x.masked_fill(x, 0.0), ShapeError, "masked_fill needs integers for mask"),
    (lambda x: x.split([1, 1], 1), ShapeError, "split: parts [1, 1] do not add up to dimension 1 of [2, 3, 4]"),
    (lambda x: x[0].scatter_add(1, (x[0] * 0 + 4).long(), x[0]), UserError, "from 0 to 4 for 4 rows (0 to 3)"),
    (lambda x: x.index_add(0, x[0, 0, :1].long() - 1, x[:1]), UserError, "from -1 to 0 for 2 rows"),
    (lambda x: layer_norm(x, (3, 5)), ShapeError, "layer_norm: input [2, 3, 4] does not end in [3, 5]"),
    (lambda x: x.topk(5), ShapeError, "rows of [2, 3, 4] do not have 5 elements")])
def test_what_cannot_be_chosen_is_an_error_of_one_line(runtime, use, error, message):
    with pytest.raises(error, match=re.escape(message)):
        use(runtime.tensor(A))


def test_a_mask_without_values_is_refused_with_the_way_out():
    with Runtime("sim:p100", memory_budget="4MiB") as runtime:
        x = runtime.tensor(A)
        with pytest.raises(UserError, match="p100 has no values; use where"):
            x[x > 5]
        assert x.masked_fill(x > 5, 0.0).shape == (2, 3, 4) and "float32[2, 3, 4]" in repr(x)


def test_methods_are_numpys(runtime):
    x, b = runtime.tensor(A - 11), A - 11
    pairs = [(x.max(), b.max()), (x.max(1).values, b.max(1)), (x.max(1, keepdim=True)[1], b.argmax(1)[:, None]),
             (x.min(-1).indices, b.argmin(-1)), (x.argmax(), b.argmax()), (x.amax((0, 2)), b.max((0, 2))),
             (x.amin(1, True), b.min(1, keepdims=True)), (x.sum((0, 2), keepdim=True), b.sum((0, 2), keepdims=True)),
             (x.var(), b.var(ddof=1)), (x.std(1, correction=0), b.std(1)), (abs(x), abs(b)), (x**2, b**2), (x**3, b**3),
             (2.0**x, 2.0**b), (1 / (x + 0.5), 1 / (b + 0.5)), (x.clamp(-2, 3), b.clip(-2, 3)),
             (x.view(2, -1), b.reshape(2, -1)),
             (x.transpose(0, 2), b.swapaxes(0, 2)), (x.unsqueeze(1), b[:, None]), (x[:1].squeeze(0), b[0]),
             (x.repeat(2, 1, 1), np.tile(b, (2, 1, 1))), (x.flatten(1), b.reshape(2, 12)), (x[0].T, b[0].T),
             (minidl.stack([x, x], 1), np.stack([b, b], 1)), (minidl.cat(x.split([1, 2], 1), 1), b),
             (minidl.cat(x.chunk(3, 2), 2), b), (minidl.where(x > 0, x, 0.0), b.clip(0)), (~(x > 0), ~(b > 0)),
             ((x > 0) & (x < 5), (b > 0) & (b < 5)), ((x < 0) | (x > 5), (b < 0) | (b > 5)), (x.long().float(), b),
             (minidl.maximum(x, -x), abs(b)), ((x == 3).sum(), (b == 3).sum()),
             (x.expand(3, -1, -1, -1), np.broadcast_to(b, (3, 2, 3, 4))),
             (x.gather(2, x.argmax(2, keepdim=True)), b.max(2, keepdims=True))]
    for i, (found, right) in enumerate(pairs):
        np.testing.assert_allclose(found.numpy(), right, rtol=1e-5, err_msg=str(i))
        assert found.shape == right.shape, i
    assert x.size() == (2, 3, 4) and x.size(-1) == 4 and x.numel() == 24 and x.dim() == 3 and x.device == "cpu:virtual"
    soft = np.exp(b) / np.exp(b).sum(1, keepdims=True)
    np.testing.assert_allclose(x.softmax(1).numpy(), soft, rtol=1e-5)
    np.testing.assert_allclose(x.log_softmax(1).numpy(), np.log(soft), rtol=1e-5, atol=1e-6)


def test_new_tensors_have_pytorchs_dtypes_and_values(runtime):
    assert minidl.tensor([1.0, 2.0]).dtype is runtime.tensor(1.5).dtype is minidl.float32
    assert minidl.tensor([1, 2]).dtype is minidl.long and minidl.tensor([True]).dtype is minidl.bool
    assert minidl.tensor(np.ones(2)).dtype is minidl.tensor([1.0], dtype=minidl.float64).dtype is minidl.float64
    assert minidl.arange(5).tolist() == [0, 1, 2, 3, 4] and minidl.arange(1, 2, 0.5).tolist() == [1.0, 1.5]
    assert minidl.full((2,), 3).dtype is minidl.int64 and minidl.eye(2).tolist() == [[1, 0], [0, 1]]
    assert minidl.tril(minidl.ones(2, 3)).tolist() == [[1, 0, 0], [1, 1, 0]]
    assert minidl.triu(minidl.ones(2, 3), 1).tolist() == [[0, 1, 1], [0, 0, 1]]
    minidl.manual_seed(3)
    first = minidl.rand(100), minidl.randn(100), minidl.randint(5, size=(100,)), minidl.randperm(9)
    minidl.manual_seed(3)
    again = minidl.rand(100), minidl.randn(100), minidl.randint(5, size=(100,)), minidl.randperm(9)
    for x, y in zip(first, again, strict=True):
        assert x.tolist() == y.tolist() and len(set(x.tolist())) > 4
    assert minidl.ones_like(first[2]).dtype is minidl.int64 and sorted(first[3].tolist()) == list(range(9))
    x = minidl.randn(3, requires_grad=True)
    (x * x).sum().backward()
    assert (x.grad.numpy() == 2 * x.numpy()).all()


def test_draws_follow_their_probabilities(runtime):
    p = runtime.tensor(np.tile(np.array([0.0, 0.1, 0.6, 0.3], "f4"), (4000, 1)))
    counts = np.bincount(minidl.multinomial(p, 1).numpy().reshape(-1), minlength=4)
    assert counts[0] == 0 and np.allclose(counts / 4000, [0, 0.1, 0.6, 0.3], atol=0.03)  # four standard deviations
    both = minidl.multinomial(p, 2).numpy()
    assert (both[:, 0] != both[:, 1]).all() and both.min() == 1


def test_repr_shows_values(runtime):
    assert repr(minidl.tensor([1.5, 2.0])).startswith("Tensor([1.5, 2. ], float32[2], id ")
    assert "..." in repr(minidl.zeros(50, 50)) and "int64[]" in repr(minidl.tensor(3))


def test_hooks_see_and_change_what_goes_in_and_out_until_they_are_removed(runtime):
    layer, seen = nn.Linear(2, 2), []
    before = layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2.0,))
    after = layer.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0].tolist(), output.shape)))
    x = minidl.ones(1, 2)
    y = layer(x)
    assert seen == [([[2.0, 2.0]], (1, 2))]
    last = layer.register_forward_hook(lambda module, inputs, output: output * 0.0)
    assert layer(x).tolist() == [[0.0, 0.0]]
    last.remove()
    assert (layer(x).numpy() == y.numpy()).all() and len(seen) == 3  # the others are still there
    for handle in (before, after, last):
        handle.remove()
    assert len(seen) == 3 and (layer(x * 2.0).numpy() == y.numpy()).all()


def test_a_module_keeps_results_as_buffers_and_is_copied_deeply(runtime):
    class Net(nn.Module):
        def __init__(self):
            self.parts = nn.ModuleDict({"first": nn.Linear(2, 3)})
            self.scale = nn.Parameter(minidl.ones(3) * 2.0)
            self.register_buffer("mask", minidl.tril(minidl.ones(3, 3)))
            self.register_buffer("other", minidl.zeros(2), persistent=False)

        def forward(self, x):
            return self.parts.first(x) * self.scale @ self.mask
    net = Net()
    assert sorted(net.state_dict()) == ["mask", "parts.first.bias", "parts.first.weight", "scale"]
    twin, names = copy.deepcopy(net), []
    twin.apply(lambda module: names.append(type(module).__name__))
    assert names == ["Linear", "ModuleDict", "Net"]
    x = minidl.ones(4, 2)
    assert (twin(x).numpy() == net(x).numpy()).all()
    nn.init.zeros_(twin.scale)
    assert not twin(x).numpy().any() and net(x).numpy().any()


def test_groups_have_rates_of_their_own_and_schedules_set_all(runtime):
    one, two = minidl.ones(2, requires_grad=True), minidl.ones(2, requires_grad=True)
    optimizer = optim.SGD([{"params": [one], "lr": 0.5}, {"params": two}], lr=0.25)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(2):
        (one + two).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert one.tolist() == [0.25] * 2 and two.tolist() == [0.625] * 2  # 1 - 0.5 - 0.25; 1 - 0.25 - 0.125
    assert schedule.get_last_lr() == [0.125, 0.0625] and optimizer.lr == 0.125
    with pytest.raises(UserError, match="a group of parameters has params and lr, momentum, dampening, "
                                          "weight_decay, nesterov, maximize, not rate"):
        optim.SGD([{"params": [one], "rate": 1.0}], lr=0.1)
    with pytest.raises(UserError, match="betas must be in"):
        optim.Adam([{"params": [one], "betas": (1.0, 0.9)}])


def test_a_gradient_of_parts_is_added_to_in_place(runtime):
    x = minidl.randn(6, 4, requires_grad=True)
    y = sum((row * float(i) for i, row in enumerate(x * 1.0)), start=minidl.zeros(4))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.repeat(np.arange(6.0), 4).reshape(6, 4))
    made = [call.op for call in runtime.trace().calls]
    assert made.count("index_grad") == 6  # one call for a part, and no further sum of whole gradients
    assert made.count("add") == 6
    x.grad = None
    y = x * 1.0
    ((y[1:4] * 2.0).sum() + y[:3].sum() + y[2:].sum() * 3.0).backward()
    assert x.grad.numpy()[:, 0].tolist() == [1.0, 3.0, 6.0, 5.0, 3.0, 3.0]
