"""Modules: registration, modes, state, display, and the initial values of layers. Networks are in test_models.py."""

import re
from collections import OrderedDict
from math import sqrt

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn
from minidl.errors import UserError
from minidl.nn import init, parameter
from minidl.ops import full


@pytest.fixture(autouse=True)
def runtime():
    with Runtime(device="cpu:virtual", memory_budget="4MiB", poisoned=True, seed=5) as made:
        yield made


class Pair(nn.Module):
    """Two layers with a buffer between them, assigned in an order unlike that of the state."""

    def __init__(self) -> None:
        self.second = nn.Linear(3, 2)
        self.register_buffer("count", parameter((1,), requires_grad=False))
        init.constant_(self.count, 0.0)
        self.first = nn.BatchNorm2d(3)
        self.scale = parameter((2,))
        init.constant_(self.scale, 1.0)

    def forward(self, x):
        return self.second(self.first(x).flatten(1)) * self.scale


def test_assignment_registers_and_a_modules_own_come_before_its_children():
    module = Pair()
    assert [name for name, _ in module.named_parameters()] == [
        "scale", "second.weight", "second.bias", "first.weight", "first.bias"]
    assert [name for name, _ in module.named_buffers()] == ["count", "first.running_mean", "first.running_var"]
    assert [name for name, _ in module.named_modules()] == ["", "second", "first"]
    assert list(module.children()) == [module.second, module.first]


def test_state_names_run_module_by_module_with_parameters_before_buffers():
    assert list(Pair().state_dict()) == ["scale", "count", "second.weight", "second.bias", "first.weight", "first.bias",
                                         "first.running_mean", "first.running_var"]


def test_replacing_or_deleting_an_attribute_replaces_or_deletes_what_is_registered():
    module = Pair()
    module.second = nn.Linear(3, 4, bias=False)
    module.first = None
    del module.scale
    assert [(name, p.shape) for name, p in module.named_parameters()] == [("second.weight", (4, 3))]


def test_a_shared_parameter_is_trained_once_and_saved_under_both_names():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    assert [name for name, _ in module.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(module.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_result_or_a_leaf_of_values_is_an_attribute_and_no_parameter():
    module = nn.Linear(2, 2)
    module.seen, module.values = full((2,), 1.0).relu(), minidl.arange(3)
    module.scale = minidl.ones(1, requires_grad=True)
    names = ["weight", "bias", "scale"]
    assert [name for name, _ in module.named_parameters()] == names == list(module.state_dict())
    assert module.seen.tolist() == [1.0, 1.0] and module.values.tolist() == [0, 1, 2]
    module.seen = parameter((2,))
    assert [name for name, _ in module.named_parameters()] == ["weight", "bias", "seen", "scale"]
    del module.seen
    module.seen = full((2,), 1.0).relu()
    assert [name for name, _ in module.named_parameters()] == names
    module.scale = module.scale * 2.0  # not made as a parameter: a program may keep any value under this name
    assert [name for name, _ in module.named_parameters()] == names[:2]


def test_what_is_no_parameter_takes_no_parameters_place():
    module = nn.Linear(2, 2)
    for value in (minidl.zeros(2, 2), module.weight * 2.0, 3, "weight", [module.weight]):
        with pytest.raises(TypeError, match="Linear.weight is a parameter, and a (Tensor|int|str|list) that is none"):
            module.weight = value
        with pytest.raises(TypeError, match="Linear.more: nn.Parameter.tensor. makes a parameter"):
            module.register_parameter("more", value)
    assert [name for name, _ in module.named_parameters()] == ["weight", "bias"]
    module.weight, module.bias = nn.Parameter(minidl.zeros(2, 2)), None
    module.register_parameter("more", nn.Parameter(minidl.zeros(2)))
    module.register_parameter("none", None)
    assert [name for name, _ in module.named_parameters()] == ["weight", "more"]


def test_a_result_that_is_assigned_to_a_buffer_is_copied_into_it():
    module = nn.Identity()
    module.register_buffer("mean", minidl.zeros(2))
    mean = module.mean
    module.mean = 0.5 * module.mean + 1.0
    assert module.mean is mean and mean.tolist() == [1.0, 1.0] and mean.operation_name == ""
    module.mean = minidl.ones(3) * 2.0
    assert module.mean.tolist() == [2.0] * 3 and list(module.state_dict()) == ["mean"]


def test_a_buffer_that_would_hide_something_is_refused_and_none_keeps_its_name():
    module = nn.Linear(2, 2)
    for name in ("weight", "forward"):
        with pytest.raises(UserError, match=f"Linear.{name} exists already, and a buffer would hide it"):
            module.register_buffer(name, minidl.ones(2, 2))
    with pytest.raises(TypeError, match="a buffer must be a tensor or None, not 3"):
        module.register_buffer("mean", 3)
    module.register_buffer("mean", None)
    assert module.mean is None and list(module.state_dict()) == ["weight", "bias"]
    module.mean = minidl.ones(2) * 2.0
    assert list(module.state_dict()) == ["weight", "bias", "mean"]


def test_train_and_eval_reach_every_module():
    module = nn.Sequential(nn.Sequential(nn.Dropout()), nn.Identity())
    assert [m.training for m in module.eval().modules()] == [False] * 4
    assert [m.training for m in module.train().modules()] == [True] * 4
    assert nn.Dropout().training


def test_train_is_what_a_child_makes_of_it():
    class Frozen(nn.BatchNorm2d):
        def train(self, mode=True):
            return super().train(False)
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(Frozen(2)))
    assert [m.training for m in module.train().modules()] == [True, True, True, False]
    module(minidl.randn(4, 1, 3, 3))
    assert module[1][0].running_mean.tolist() == [0.0, 0.0]


def test_zero_grad_forgets_every_gradient():
    module = Pair()
    for tensor in module.parameters():
        tensor.grad = full(tensor.shape, 1.0)
    module.zero_grad()
    assert all(tensor.grad is None for tensor in module.parameters())


def test_a_state_that_is_saved_loads_into_another_module_byte_for_byte():
    ours, theirs = Pair(), Pair()
    init.normal_(ours.first.running_mean)
    state = ours.state_dict()
    assert any(not np.array_equal(array, theirs.state_dict()[name]) for name, array in state.items())
    assert theirs.load_state_dict(state) == ([], [])
    for name, array in theirs.state_dict().items():
        assert array.tobytes() == state[name].tobytes(), name


def test_a_saved_state_is_a_copy_that_later_changes_do_not_reach():
    module = Pair()
    state = module.state_dict()
    init.constant_(module.scale, 7.0)
    assert state["scale"].tolist() == [1.0, 1.0]


def test_a_state_of_another_dtype_layout_or_kind_of_sequence_is_converted():
    layer = nn.Linear(2, 3)
    weight = np.arange(6.0).reshape(2, 3)  # float64
    layer.load_state_dict({"weight": weight.T, "bias": [1, 2, 3]})
    assert layer.weight.numpy().tolist() == weight.T.tolist()
    assert layer.bias.numpy().tolist() == [1.0, 2.0, 3.0]


def test_a_state_is_copied_when_it_is_loaded():
    layer = nn.Linear(2, 3)
    state = {"weight": np.ones((3, 2), np.float32), "bias": np.ones(3, np.float32)}
    layer.load_state_dict(state)
    state["weight"][:] = state["bias"][:] = 2.0
    assert layer.weight.numpy().tolist() == [[1.0, 1.0]] * 3
    assert layer.bias.numpy().tolist() == [1.0] * 3


def test_the_count_of_batches_that_torch_saves_is_ignored():
    layer = nn.BatchNorm2d(3)
    layer.load_state_dict(layer.state_dict() | {"num_batches_tracked": np.int64(4)})
    module = nn.Sequential(layer)
    module.load_state_dict(module.state_dict() | {"0.num_batches_tracked": np.int64(4)})


def test_a_state_that_does_not_fit_is_one_error_that_names_all_it_lacks_and_nothing_is_written():
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    before = module.state_dict()
    state = {name: array + 1 for name, array in before.items()}
    state["0.bias"] = np.zeros(3)
    for gone in ("1.weight", "1.bias", "2.weight", "2.bias"):
        del state[gone]
    state["fc.weight"] = np.zeros(1)
    message = ("the state does not fit Sequential: 1 wrong shape: 0.bias is [3] and must be [2]; "
               "4 missing: 1.weight, 1.bias, 2.weight, ...; 1 unexpected: fc.weight")
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        module.load_state_dict(state)
    for name, array in module.state_dict().items():
        assert np.array_equal(array, before[name]), name


def test_without_strict_what_fits_is_loaded_and_the_rest_is_returned_but_shapes_must_still_fit():
    module = nn.Linear(2, 2)
    assert module.load_state_dict({"bias": [3, 4], "other": [0]}, strict=False) == (["weight"], ["other"])
    assert module.bias.numpy().tolist() == [3.0, 4.0]
    with pytest.raises(UserError, match="1 wrong shape"):
        module.load_state_dict({"bias": [3]}, strict=False)


def test_sequential_takes_names_from_an_ordered_dict_and_is_indexed_by_position():
    module = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, 3), act=nn.ReLU()))
    assert [name for name, _ in module.named_parameters()] == ["conv.weight", "conv.bias"]
    assert len(module) == 2
    assert module[-1] is module.act


def test_a_module_list_numbers_what_is_appended():
    modules = nn.ModuleList([nn.Linear(1, 1)]).append(nn.Linear(2, 2, bias=False))
    assert [name for name, _ in modules.named_parameters()] == ["0.weight", "0.bias", "1.weight"]
    assert [type(m).__name__ for m in modules] == ["Linear", "Linear"]


def test_a_module_is_shown_as_a_tree():
    module = nn.Sequential(OrderedDict(
        body=nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        head=nn.Linear(8, 2)))
    assert repr(module) == """Sequential(
  (body): Sequential(
    (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    (1): ReLU(inplace=True)
    (2): MaxPool2d(kernel_size=(2, 2), stride=(2, 2))
  )
  (head): Linear(8, 2)
)"""


def test_layers_start_uniform_within_one_over_the_root_of_their_fan_in():
    # Conv2d(4, 64, 5): fan_in 100, so both within 0.1; of 6400 values the largest is within 1% of the bound.
    layer = nn.Conv2d(4, 64, 5)
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    assert 0.099 < np.abs(weight).max() <= 0.1 + 1e-7
    assert 0.05 < np.abs(bias).max() <= 0.1 + 1e-7
    assert abs(weight.std() - 0.1 / sqrt(3)) < 0.002  # 6400 values: standard error about 0.0005


@pytest.mark.parametrize(("initialise", "std"), [  # [30, 20, 3, 3]: fan_in 180, fan_out 270
    (lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), sqrt(2 / 270)),
    (lambda w: init.kaiming_normal_(w, nonlinearity="linear"), sqrt(1 / 180)),
    (lambda w: init.kaiming_uniform_(w, a=1.0), sqrt(1 / 180)),
    (lambda w: init.kaiming_uniform_(w, nonlinearity="tanh"), 5 / 3 / sqrt(180)),
    (init.xavier_uniform_, sqrt(2 / 450)),
])
def test_initialisers_have_the_standard_deviation_of_their_papers(initialise, std):
    weight = parameter((30, 20, 3, 3))
    initialise(weight)
    values = weight.numpy()
    assert values.std() == pytest.approx(std, rel=0.05)  # 5400 values: standard error about 1%
    assert abs(values.mean()) < 0.1 * std


def test_each_initialisation_draws_new_values_that_follow_from_the_runtimes_seed():
    def values(seed):
        with Runtime(device="cpu", memory_budget="4MiB", seed=seed):
            return [nn.Linear(4, 4).weight.numpy().tobytes() for _ in range(2)]
    assert values(1) == values(1)
    assert len({*values(1), *values(2)}) == 4


def test_batch_norm_starts_as_the_identity():
    state = nn.BatchNorm2d(2).state_dict()
    assert {name: array.tolist() for name, array in state.items()} == {
        "weight": [1, 1], "bias": [0, 0], "running_mean": [0, 0], "running_var": [1, 1]}


def test_batch_norm_moves_its_running_statistics_in_training_only():
    layer = nn.BatchNorm2d(1)
    x = full((2, 1, 1, 2), 3.0)
    layer.eval()(x)
    assert layer.running_mean.numpy().tolist() == [0.0]
    layer.train()(x)
    assert layer.running_mean.numpy() == pytest.approx([0.3])  # 0.9 * 0 + 0.1 * 3
    assert layer.running_var.numpy() == pytest.approx([0.9])  # 0.9 * 1 + 0.1 * 0


def test_dropout_draws_a_new_mask_each_time_and_does_nothing_in_inference():
    layer = nn.Dropout(0.5)
    x = full((64,), 1.0)
    one, two = layer(x).numpy(), layer(x).numpy()
    assert set(one) == {0.0, 2.0}
    assert not np.array_equal(one, two)
    assert layer.eval()(x) is x
    with pytest.raises(UserError, match=re.escape("in [0, 1), not 1")):
        nn.Dropout(1.0)


def test_an_in_place_relu_gives_its_input_up_and_has_the_value_of_the_other():
    x, y = (full((4,), -1.0) for _ in range(2))
    assert nn.ReLU(inplace=True)(x).numpy().tolist() == nn.ReLU()(y).numpy().tolist() == [0.0] * 4
    assert y.numpy().tolist() == [-1.0] * 4


def test_a_convolution_with_relu_is_the_positive_part_of_the_one_without():
    together, apart = nn.ConvReLU2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
    apart.load_state_dict(together.state_dict())
    x = full((2, 3, 5, 5), 0.5)
    y = together(x)
    assert y.operation_name == "conv2d_relu"
    assert y.numpy().tobytes() == apart(x, relu=True).numpy().tobytes() == nn.ReLU()(apart(x)).numpy().tobytes()
    assert repr(together).startswith("ConvReLU2d(3, 4, kernel_size=(3, 3)")


def test_layers_of_one_operation_have_its_shape():
    x = full((2, 3, 8, 6), 0.5)
    assert nn.Conv2d(3, 5, (3, 1), stride=(2, 1), padding=(1, 0))(x).shape == (2, 5, 4, 6)
    assert nn.MaxPool2d(3, 2, 1)(x).shape == (2, 3, 4, 3)
    assert nn.AvgPool2d(2)(x).shape == (2, 3, 4, 3)
    assert nn.AdaptiveAvgPool2d((1, 2))(x).shape == (2, 3, 1, 2)
    assert nn.Flatten()(x).shape == (2, 144)
    assert nn.Linear(6, 4, bias=False)(x).shape == (2, 3, 8, 4)
    assert nn.Tanh()(x).numpy()[0, 0, 0, 0] == pytest.approx(np.tanh(0.5))
    assert nn.Sigmoid()(x).numpy()[0, 0, 0, 0] == pytest.approx(1 / (1 + np.exp(-0.5)))
