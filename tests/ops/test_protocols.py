"""What Python and NumPy ask of a tensor: copies, deep copies of models, arrays, comparisons."""

import copy
import pickle

import numpy as np
import pytest

from minidl import Runtime, UserError, nn, parameter
from minidl.optim import SGD


@pytest.fixture(autouse=True)
def runtime():
    with Runtime("cpu:virtual", memory_budget="1MiB", poisoned=True) as made:
        yield made


def test_a_copy_is_another_handle_and_the_bytes_outlive_either(runtime):
    x = runtime.tensor(np.arange(3, dtype="f4")) * 2.0
    y = copy.copy(x)
    del y
    assert x.numpy().tolist() == [0.0, 2.0, 4.0]
    y = copy.copy(x)
    del x
    assert y.numpy().tolist() == [0.0, 2.0, 4.0]
    runtime.check()


class Tied(nn.Module):
    def __init__(self):
        self.inner = nn.Linear(2, 2)
        self.tied = self.inner.weight
        self.norm = nn.BatchNorm2d(2)


def test_a_deep_copy_of_a_model_is_a_model_of_its_own_and_shares_what_it_shared(runtime):
    model = Tied()
    (model.tied * 2.0).sum().backward()
    average = copy.deepcopy(model)
    before = average.state_dict()
    assert average.tied is average.inner.weight and average.tied is not model.tied
    assert average.tied.requires_grad and not average.norm.running_mean.requires_grad
    assert average.tied.grad.numpy().tolist() == [[2.0, 2.0]] * 2
    assert [name for name, _ in average.named_buffers()] == [name for name, _ in model.named_buffers()]
    SGD([model.tied], lr=0.1).step()
    assert all((before[name] == array).all() for name, array in average.state_dict().items())
    assert not (before["inner.weight"] == model.tied.numpy()).any()
    x = runtime.tensor([1, 2])
    assert copy.deepcopy(x).numpy().tolist() == [1, 2]


def test_the_result_of_an_operation_is_not_copied_deeply_and_nothing_is_pickled():
    w = parameter((2,))
    with pytest.raises(UserError, match=r"copy.deepcopy\(\) of tensor 0 \(float32\[2\]\), the result of scale"):
        copy.deepcopy(w * 2.0)
    for thing in (w, nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="a tensor cannot be pickled"):
            pickle.dumps(thing)


def test_numpy_takes_the_values_of_a_tensor(runtime):
    x = runtime.tensor(np.arange(4, dtype="f4").reshape(2, 2))
    assert type(np.asarray(x)) is np.ndarray and np.asarray(x).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert np.asarray(x, np.int64).dtype == np.int64 and np.array(x).shape == (2, 2)
    assert (np.asarray(x) == np.asarray(x.reshape((2, 2)))).all()
    assert np.allclose(x, [[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, copy=False)
    for product in (np.float32(2) * x, 2 * x, x * np.float64(2)):
        assert product.numpy().tolist() == [[0.0, 2.0], [4.0, 6.0]]
    model = nn.Linear(2, 2)
    model.load_state_dict({"weight": x, "bias": x.narrow(0, 0, 1).reshape((2,))})
    assert model.weight.numpy().tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_an_operator_compares_values_and_what_is_no_number_differs(runtime):
    x, y = runtime.tensor(np.array([1.0, 2.0], "f4")), runtime.tensor(np.array([1.0, 3.0], "f4"))
    assert (x == y).numpy().tolist() == [True, False] and (x != 1.0).tolist() == [False, True]
    assert x in [x, y] and x != None and x != "x" and len({x, y, x}) == 2  # noqa: E711, PLR0124
    with pytest.raises(UserError, match="a ndarray is not a tensor; runtime.tensor"):
        x == np.ones(2)  # noqa: B015
    with pytest.raises(ValueError, match="one element, not 2"):
        assert x == y  # which is right depends on what is meant
