"""What arguments mean: as in NumPy and PyTorch, or an error of one line; nothing is changed or lost in silence."""

import re

import numpy as np
import pytest

import minidl
from minidl import Runtime, ShapeError, UserError, nn, ops, parameter
from minidl.meta import DTYPES, bfloat16, boolean, float16, float32, int32, int64, uint8
from minidl.optim import SGD, Adam


@pytest.fixture(autouse=True)
def runtime():
    with Runtime("cpu:virtual", memory_budget="4MiB", poisoned=True) as made:
        yield made
        made.check()


def leaf(runtime, *shape, value=1.0, dtype=float32):
    x = runtime.tensor(np.full(shape, value), dtype=dtype)
    x.requires_grad = dtype.floating
    return x


# Axes and windows -----------------------------------------------------------------------------------------------------
def test_a_negative_axis_counts_from_the_end(runtime):
    a = np.arange(24, dtype="f4").reshape(2, 3, 4)
    x = runtime.tensor(a)
    assert (ops.concat([x, x], -1).numpy() == np.concatenate([a, a], -1)).all()
    assert (x.sum(-2).numpy() == a.sum(-2)).all() and (x.mean((-1, 0)).numpy() == a.mean((-1, 0))).all()
    assert (x.permute((-1, 0, 1)).numpy() == a.transpose(-1, 0, 1)).all()
    assert (x.narrow(-1, 1, 2).numpy() == a[..., 1:3]).all() and x.flatten(-2).shape == (2, 12)


@pytest.mark.parametrize("use, message", [
    (lambda x: ops.concat([x, x], 2), "concat: there is no axis 2 of [2, 3]"),
    (lambda x: x.sum(5), "sum: there is no axis 5 of [2, 3]"),
    (lambda x: x.sum((0, -2)), "sum: an axis of [2, 3] comes twice in [0, -2]"),
    (lambda x: x.mean(-3), "mean: there is no axis -3 of [2, 3]"),
    (lambda x: x.permute((2, 3)), "permute: there is no axis 2 of [2, 3]"),
    (lambda x: x.permute((0,)), "axes [0] do not permute the 2 dimensions of [2, 3]"),
    (lambda x: x.narrow(2, 0, 1), "narrow: there is no axis 2 of [2, 3]"),
    (lambda x: x.flatten(5), "flatten: there is no axis 5 of [2, 3]"),
    (lambda x: x.reshape((-2, -3)), "cannot reshape [2, 3] to [-2, -3]: only one size may be negative, -1"),
    (lambda x: ops.adaptive_avg_pool2d(x.reshape((1, 1, 2, 3)), 0), "[1, 1, 2, 3] has no 0x0 windows"),
    (lambda x: ops.max_pool2d(x.reshape((1, 1, 2, 3)), 0), "no 0x0 window can have stride (0, 0)"),
    (lambda x: ops.avg_pool2d(x.reshape((1, 1, 2, 3)), 2, stride=0), "no 2x2 window can have stride (0, 0)"),
    (lambda x: ops.conv2d(x.reshape((1, 1, 2, 3)), x.reshape((1, 1, 2, 3)), padding=-1), "and padding (-1, -1)"),
    (lambda x: ops.conv_transpose2d(x.reshape((1, 1, 2, 3)), x.reshape((1, 1, 2, 3)), stride=0), "stride (0, 0)")])
def test_an_axis_or_a_window_that_does_not_exist_is_an_error_and_ends_the_call_alone(runtime, use, message):
    x = leaf(runtime, 2, 3)
    with pytest.raises(ShapeError, match=re.escape(message)):
        use(x)
    assert x.sum().item() == 6.0


def test_what_is_no_tensor_is_an_error_that_says_what_it_is(runtime):
    x = leaf(runtime, 2, 2)
    for use in (lambda: x @ np.ones((2, 2)), lambda: ops.relu(np.ones(2)), lambda: ops.concat([x, None], 0)):
        with pytest.raises(UserError, match=r"a (ndarray|NoneType) is not a tensor; runtime.tensor\(x\) converts it"):
            use()


# Sizes ----------------------------------------------------------------------------------------------------------------
SIZED = {
    "zeros": (lambda n: minidl.zeros(n(4), n(2)), (4, 2)), "full": (lambda n: minidl.full((n(3),), 1.0), (3,)),
    "view": (lambda n: minidl.ones(20, 50).view(n(100), -1), (100, 10)), "view of one": (
        lambda n: minidl.ones(2, 3).view(n(6)), (6,)), "expand": (lambda n: minidl.ones(1, 3).expand(n(5), 3), (5, 3)),
    "repeat": (lambda n: minidl.ones(2, 3).repeat(n(2), 1), (4, 3)),
    "sum": (lambda n: minidl.ones(2, 3).sum(n(1)), (2,)),
    "narrow": (lambda n: minidl.ones(9, 3).narrow(n(0), n(3), n(4)), (4, 3)),
    "split": (lambda n: minidl.ones(9, 3).split(n(4))[0], (4, 3)),
    "pad": (lambda n: nn.functional.pad(minidl.ones(2, 3), (n(1), n(2))), (2, 6)),
    "parameter": (lambda n: parameter((n(2), n(3))), (2, 3)),
    "Linear": (lambda n: nn.Linear(n(100), n(100))(minidl.ones(2, 100)), (2, 100)),
    "Conv2d": (lambda n: nn.Conv2d(n(2), n(4), n(3), stride=n(2), padding=n(1))(minidl.ones(1, 2, 9, 9)), (1, 4, 5, 5)),
    "MaxPool2d": (lambda n: nn.MaxPool2d(n(2))(minidl.ones(1, 1, 4, 4)), (1, 1, 2, 2)),
    "LayerNorm": (lambda n: nn.LayerNorm(n(4))(minidl.ones(2, 4)), (2, 4)),
}


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("name", SIZED)
def test_a_size_may_be_an_integer_of_numpy_and_the_device_goes_on(name, kind):
    use, shape = SIZED[name]
    with Runtime("cpu", memory_budget="1MiB"):
        y = use(kind)
        assert y.shape == shape and {type(n) for n in (*y.shape, *y.meta.strides, y.meta.offset)} == {int}
        assert (y == y).shape == shape and minidl.ones(3).sum().item() == 3.0


@pytest.mark.parametrize("use", [
    lambda: nn.Linear(8, 8 / 2), lambda: minidl.zeros(2, 3.0), lambda: minidl.ones(3, 4).view(12 / 4, 4),
    lambda: minidl.full((2.0,), 1.0), lambda: minidl.ones(1, 4).expand(3.0, 4), lambda: minidl.ones(2).repeat(1.5),
    lambda: parameter((4.0, 8)), lambda: minidl.ones(2, 3).softmax(1.0), lambda: minidl.ones(4, 3).narrow(0, 1.0, 2)],
    ids=lambda use: "")
@pytest.mark.parametrize("before", [False, True])  # after the same sizes as integers, which equal the fractions
def test_a_size_that_is_no_integer_is_an_error_and_the_right_size_works_afterwards(use, before):
    right = (lambda: nn.Linear(8, 4), lambda: minidl.zeros(2, 3), lambda: minidl.zeros(3, 4).view(3, 4),
             lambda: minidl.zeros(3, 4), lambda: minidl.zeros(4, 8), lambda: minidl.zeros(2, 3).softmax(1))
    with Runtime("cpu", memory_budget="1MiB"):
        for make in right if before else ():
            make()
        with pytest.raises(TypeError, match="sizes are integers|interpreted as an integer"):
            use()
        for make in right:
            make()
        assert minidl.ones(2).sum().item() == 2.0


# Integers and dtypes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("use", [
    lambda x: x.add_(0.5), lambda x: x.mul_(2.5), lambda x: x.div_(2), lambda x: x + 2**60, lambda x: x.mean(),
    lambda x: ops.scale(x, 2.5), lambda x: ops.shift(x, float("nan")), lambda x: ops.div(x, 2), ops.exp, ops.softmax,
    ops.gelu, lambda x: ops.dropout(x, 0.5, 1), lambda x: x @ x,
    lambda x: ops.linear_(x, x), lambda x: ops.conv2d(x.reshape((1, 1, 2, 2)), x.reshape((1, 1, 2, 2)))],
    ids=lambda use: "")
@pytest.mark.parametrize("dtype", [int64, int32, uint8], ids=lambda dtype: dtype.name)
def test_arithmetic_that_integers_would_lose_values_in_is_an_error(runtime, use, dtype):
    x = leaf(runtime, 2, 2, value=3, dtype=dtype)
    with pytest.raises(ShapeError, match=r"floating|does not fit a tensor of u?int"):
        use(x)
    assert x.numpy().tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(("use", "expected"), [
    (lambda x: x / 2, 1.5), (lambda x: x / x, 1.0), (lambda x: x * 2.5, 7.5), (lambda x: x + 0.5, 3.5),
    (lambda x: 2 / x, 2 / 3), (lambda x: 0.5 - x, -2.5), (lambda x: x * 2.0, 6.0), (lambda x: x ** 2.0, 9.0),
    (lambda x: 2.0 ** x, 8.0), (lambda x: x.exp(), np.exp(3.0)), (lambda x: x.sqrt(), np.sqrt(3.0)),
    (lambda x: x.sin(), np.sin(3.0)), (lambda x: x * minidl.tensor(2.0), 6.0), (lambda x: x.clamp(max=2.5), 2.5),
    (lambda x: x.bool() * 1.5, 1.5)], ids=lambda use: "")
@pytest.mark.parametrize("dtype", [int64, int32, uint8], ids=lambda dtype: dtype.name)
def test_arithmetic_of_integers_that_has_fractions_is_float32(runtime, use, expected, dtype):
    y = use(leaf(runtime, 2, 2, value=3, dtype=dtype))
    assert y.dtype is float32
    np.testing.assert_allclose(y.numpy(), np.full((2, 2), expected), rtol=1e-6)


def test_operands_of_two_kinds_have_the_higher_one_and_two_floats_are_refused(runtime):
    mask, byte, whole, many = (leaf(runtime, 2, value=1, dtype=d) for d in (boolean, uint8, int32, int64))
    assert [(a + b).dtype for a, b in ((mask, byte), (byte, whole), (whole, many), (many, mask))] == [
        uint8, int32, int64, int64]
    assert (mask + mask).dtype is boolean and (mask * 2).dtype is int64 and (many * True).dtype is int64
    with pytest.raises(ShapeError, match="dtypes differ: float32 and float64 in add; x.to"):
        leaf(runtime, 2) + leaf(runtime, 2).double()


def test_what_is_exact_is_allowed_and_sums_of_integers_are_int64(runtime):
    x = runtime.tensor(np.array([200, 255, 7], np.uint8))
    assert (x * 1 + 0).dtype is uint8 and x.sum().dtype is int64 and x.sum().item() == 462
    assert runtime.tensor(np.full(4, 2**30, np.int32)).sum().item() == 2**32
    big = runtime.tensor([2**53 + 1, 5])
    assert (big + big - big).numpy().tolist() == [2**53 + 1, 5] and big.sum(0, keepdim=True).numpy()[0] == 2**53 + 6
    with pytest.raises(ShapeError, match="cross_entropy needs integers for labels"):
        ops.cross_entropy(leaf(runtime, 2, 3), leaf(runtime, 2))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
def test_a_mean_of_halves_is_summed_up_in_float32(runtime, dtype):
    x = leaf(runtime, 300, 300, value=1024.0, dtype=dtype)  # the sum is 9e7: no float16
    mean = x.mean()
    mean.backward()
    assert mean.dtype is dtype and mean.item() == 1024.0 and x.mean(0).numpy().tolist() == [1024.0] * 300
    assert x.grad.dtype is dtype
    assert x.grad.numpy().astype("f4") == pytest.approx(1 / 90000, rel=0.03)  # subnormal in float16: 2^-24 / 2 of it


@pytest.mark.parametrize("data, message", [
    (np.ones(1, "i2"), "there are no tensors of int16"),
    (np.ones(1, "u4"), "there are no tensors of uint32"), (np.ones(1, "c8"), "there are no tensors of complex64"),
    (np.array(["a"]), "there are no tensors of str"), ([None, 1], "there are no tensors of object")], ids=str)
def test_data_of_a_dtype_that_tensors_do_not_have_is_an_error(runtime, data, message):
    with pytest.raises(UserError, match=message):
        runtime.tensor(data)


def test_a_type_of_python_stands_for_its_dtype_and_what_is_no_dtype_is_refused(runtime):
    x = leaf(runtime, 2)
    for kind, dtype in ((float, minidl.float64), (int, int64), (bool, boolean)):
        made = (minidl.zeros(2, dtype=kind), minidl.full((2,), 1, dtype=kind), minidl.arange(2, dtype=kind),
                minidl.ones_like(x, dtype=kind), minidl.eye(2, dtype=kind), minidl.tensor([1], dtype=kind),
                minidl.empty(2, dtype=kind), x.new_zeros(2, dtype=kind), x.to(kind))
        assert {y.dtype for y in made} == {dtype}
    made = x.sum(dtype=float), x.cumsum(0, dtype=float), x.softmax(0, dtype=float)
    assert {y.dtype for y in made} == {minidl.float64}
    for use in (lambda: minidl.zeros(2, dtype="float32"), lambda: minidl.tensor([1.0], dtype="int64"),
                lambda: minidl.arange(2, dtype=np.float32), lambda: x.sum(dtype=np.float64)):
        with pytest.raises(TypeError, match="a dtype is one of minidl's, such as minidl.float32, or float, int"):
            use()


def test_type_names_the_type_and_converts_to_what_a_name_says(runtime):
    x = leaf(runtime, 2, value=3, dtype=int64)
    assert x.type() == "torch.LongTensor" and leaf(runtime, 2).type() == "torch.FloatTensor"
    for asked in ("torch.FloatTensor", "torch.cuda.FloatTensor", minidl.FloatTensor, float32, leaf(runtime, 1)):
        assert x.type(asked).dtype is float32 and isinstance(x.type(asked), minidl.FloatTensor)
    assert x.type(float).type() == "torch.DoubleTensor" and not isinstance(x, minidl.FloatTensor)
    for asked in ("FloatTensor", "torch.float32", np.float32, 3):
        with pytest.raises(ValueError, match=r"type\(\) takes a dtype or a name such as 'torch.FloatTensor', not"):
            x.type(asked)


def test_a_dtype_that_is_asked_for_must_be_able_to_hold_the_values(runtime):
    assert runtime.tensor(np.array([True, False]), dtype=uint8).numpy().tolist() == [1, 0]
    assert runtime.tensor(np.ones(1, "i2"), dtype=float32).dtype is float32
    for data, dtype, message in (([300], uint8, "values from 300 to 300 do not fit uint8"),
                                 ([-1], uint8, "values from -1 to -1 do not fit uint8"),
                                 ([2.0**40], int32, "do not fit int32"), ([np.nan], int64, "do not fit int64"),
                                 ([1j], float32, "values of complex128 are no float32")):
        with pytest.raises(UserError, match=message):
            runtime.tensor(data, dtype=dtype)
    with pytest.raises(ShapeError, match=re.escape("data of shape [4] for a tensor of shape [2, 2]")):
        runtime.tensor(np.ones(4), shape=(2, 2))
    assert runtime.tensor(np.ones((2, 2)), shape=(2, 2)).shape == (2, 2)
    for name, dtype in DTYPES.items():
        assert runtime.tensor(np.ones(2, name)).dtype is dtype


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_a_number_beyond_the_range_of_integers_fills_no_tensor_and_the_device_goes_on(value):
    with Runtime("cpu", memory_budget="1MiB"):
        x = minidl.tensor([[1, 2], [3, 4]])
        for write in (lambda: x.fill_(value), lambda: x[:1].fill_(value), lambda: x.__setitem__(0, value),
                      lambda: nn.functional.pad(x, (1, 1), value=value), lambda: minidl.full_like(x, value),
                      lambda: ops.full((2,), value, dtype=uint8), lambda: nn.init.constant_(x, value),
                      lambda: minidl.full((2,), value, dtype=int32)):
            with pytest.raises(UserError, match="does not fit (int64|int32|uint8)"):
                write()
        assert x.tolist() == [[1, 2], [3, 4]]
        assert x.fill_(2.5).tolist() == [[2, 2], [2, 2]] and x.fill_(-2**63).tolist() == [[-2**63] * 2] * 2
        with pytest.raises(UserError, match="a value of -1 does not fit uint8"):
            minidl.zeros(2, dtype=uint8).fill_(-1)
        assert minidl.full((1,), True, dtype=minidl.bool).tolist() == [True]


@pytest.mark.parametrize("value", [[1.0, 2.0], (1.0, 2.0), "a", None, np.ones(2), {}], ids=repr)
def test_what_is_no_number_fills_no_tensor_and_the_device_goes_on(value):
    with Runtime("cpu", memory_budget="1MiB"):
        x = minidl.zeros(2, 2)
        x[0] = 1.0  # the first call of its kind would wait for its kernel
        minidl.full((2,), 1.0)
        for write in (lambda: x.fill_(value), lambda: x[0].fill_(value), lambda: minidl.full((2,), value),
                      lambda: x.new_full((2,), value), lambda: nn.init.constant_(x, value), lambda: x.normal_(value),
                      lambda: nn.init.normal_(x, 0.0, value), lambda: x.uniform_(0.0, value), lambda: value / x,
                      lambda: x.__setitem__(0, value) if not isinstance(value, np.ndarray) else x.fill_(value)):
            with pytest.raises(TypeError):
                write()
        assert x.tolist() == [[1.0, 1.0], [0.0, 0.0]]
        assert nn.functional.pad(minidl.ones(1), (1, 1), value=None).tolist() == [0.0, 1.0, 0.0]
        assert x.fill_(np.float32(2.0)).tolist() == x.fill_(minidl.tensor(2.0)).tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("dtype", [int64, int32])
def test_a_class_that_does_not_exist_has_no_row_in_a_one_hot_encoding_and_the_device_goes_on(dtype):
    with Runtime("cpu", memory_budget="1MiB"):
        for labels, classes, message in (([0, 3], 2, "from 0 to 3 for 2 rows"), ([-1, 1], 2, "from -1 to 1 for 2 rows"),
                                         ([-1, 1], -1, "from -1 to 1 for 2 rows"), ([-2], -1, "for 0 rows")):
            with pytest.raises(UserError, match=message):
                nn.functional.one_hot(minidl.tensor(labels, dtype=dtype), classes)
        y = nn.functional.one_hot(minidl.tensor([[1], [0]], dtype=dtype), 3)
        assert y.tolist() == [[[0, 1, 0]], [[1, 0, 0]]] and y.dtype is int64
        assert nn.functional.one_hot(minidl.tensor(2, dtype=dtype)).tolist() == [0, 0, 1]


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_maxima_of_windows_of_integers_are_refused_by_name_also_where_windows_are_completed(runtime, ceil_mode):
    with pytest.raises(ShapeError, match=r"max_pool2d needs floating-point numbers for x, not int64\[1, 2, 3, 6\]"):
        nn.functional.max_pool2d(runtime.tensor(np.zeros((1, 2, 3, 6), "i8")), 3, 2, ceil_mode=ceil_mode)


# Nothing --------------------------------------------------------------------------------------------------------------
NOTHING = {
    "linear": (lambda x, w, b: ops.linear_(x, w, b), (0, 3), (5, 3), (5,)),
    "linear of no features": (lambda x, w, b: ops.linear_(x, w, b), (2, 0), (5, 0), (5,)),
    "linear to none": (lambda x, w, b: ops.linear_(x, w, b), (2, 3), (0, 3), (0,)),
    "linear of no words": (lambda x, w, b: ops.linear_(x, w, b), (2, 0, 3), (5, 3), (5,)),
    "matmul": (lambda a, b: a @ b, (0, 3), (3, 2)),
    "matmul over nothing": (lambda a, b: a @ b, (2, 0), (0, 3)),
    "batches": (lambda a, b: a @ b, (0, 2, 2), (2, 2)),
    "add": (lambda a, b: a + b, (0, 3), (3,)),
    "mul": (lambda a, b: a * b, (0, 3), (1, 3)),
    "relu": (ops.relu, (0, 3)),
    "softmax": (ops.softmax, (0, 3)),
    "sum": (lambda x: x.sum(0), (0, 3)),
    "concat": (lambda a, b: ops.concat([a, b], 0), (0, 3), (2, 3)),
    "narrow": (lambda x: x.narrow(1, 1, 0), (2, 3)),
    "conv2d": (lambda x, w, b: ops.conv2d(x, w, b), (0, 2, 4, 4), (3, 2, 3, 3), (3,)),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 2), (0, 1, 4, 4)),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, w, b), (0, 3), (3,), (3,)),
    "attention": (lambda q, k, v: ops.scaled_dot_product_attention(q, k, v, heads=2), (1, 0, 4), (1, 2, 4), (1, 2, 4)),
    "embedding": (lambda w: ops.embedding_(w, _ids((0,))), (3, 2)),
    "gather_rows": (lambda x: ops.gather_rows(x, _ids((2, 0))), (2, 3, 2)),
}


def _ids(shape):
    from minidl import current_runtime
    return current_runtime().tensor(np.zeros(shape, np.int64))


@pytest.mark.parametrize("name", NOTHING)
def test_an_operand_without_elements_works_as_in_numpy_and_gives_gradients_of_zero(runtime, name):
    function, *shapes = NOTHING[name]
    leaves = [leaf(runtime, *shape) for shape in shapes]
    y = function(*leaves)
    expected = {"linear of no features": np.ones((2, 5)), "matmul over nothing": np.zeros((2, 3)),
                "sum": np.zeros(3), "concat": np.ones((2, 3))}.get(name)
    assert y.numel() == 0 if expected is None else y.numpy().tolist() == expected.tolist()
    y.sum().backward()
    for x in leaves:
        whole = name == "concat" or name == "linear of no features"  # where something does come out
        assert x.grad.shape == x.shape and (whole or not x.grad.numpy().any())


def test_an_expert_without_tokens_trains_with_the_others(runtime):
    experts = [nn.Linear(3, 3) for _ in range(2)]
    optimizer = Adam([p for expert in experts for p in expert.parameters()], lr=0.1)
    before = experts[0].weight.numpy()
    x = runtime.tensor(np.ones((4, 3), "f4"))
    y = ops.concat([experts[0](x.narrow(0, 0, 0)), experts[1](x)], 0)
    y.mean().backward()
    optimizer.step()
    assert (experts[0].weight.numpy() == before).all()  # a gradient of zero
    assert y.numpy().shape == (4, 3)


def test_parameters_without_elements_are_updated_and_a_mean_of_nothing_is_not_a_number(runtime):
    empty, other = parameter((0, 2)), parameter((2,))
    for p in (empty, other):
        p.fill_(1.0)
    (empty.sum(0) + other).sum().backward()
    SGD([empty, other], lr=0.5, momentum=0.9).step()
    assert other.numpy().tolist() == [0.5, 0.5] and empty.numpy().shape == (0, 2)
    assert np.isnan(empty.mean().item()) and np.isinf((other / 0.0).numpy()).all()
