"""Layers of PyTorch's names with its arguments, from its weights: outputs, gradients and the names of parameters."""

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

IMAGE, SEQUENCE, ROWS = (2, 4, 5, 6), (2, 4, 9), (3, 4)
LAYERS = {
    "Conv2d groups": ("Conv2d", (4, 8, 3), {"groups": 4, "padding": 1}, IMAGE),
    "Conv2d positional": ("Conv2d", (4, 6, 3, 1, 2, 2, 2, False), {}, IMAGE),
    "Conv2d reflect": ("Conv2d", (4, 6, 3), {"padding": 1, "padding_mode": "reflect"}, IMAGE),
    "Conv2d same": ("Conv2d", (4, 6, 3), {"padding": "same"}, IMAGE),
    "Conv2d one image": ("Conv2d", (4, 6, 3), {}, IMAGE[1:]),
    "Conv1d": ("Conv1d", (4, 6, 3), {"padding": 1, "stride": 2}, SEQUENCE),
    "Conv1d groups": ("Conv1d", (4, 4, 3), {"groups": 4, "padding": 2, "dilation": 2}, SEQUENCE),
    "ConvTranspose2d": ("ConvTranspose2d", (4, 6, 3, 2, 1, 1), {}, IMAGE),
    "ConvTranspose2d groups": ("ConvTranspose2d", (4, 6, 3, 2), {"groups": 2, "bias": False}, IMAGE),
    "LeakyReLU": ("LeakyReLU", (0.2,), {}, ROWS), "ELU": ("ELU", (0.7,), {}, ROWS), "CELU": ("CELU", (1.3,), {}, ROWS),
    "SELU": ("SELU", (), {}, ROWS), "PReLU": ("PReLU", (), {}, ROWS), "PReLU channels": ("PReLU", (4,), {}, IMAGE),
    "ReLU6": ("ReLU6", (), {}, ROWS), "Hardtanh": ("Hardtanh", (-0.5, 0.7), {}, ROWS),
    "Hardsigmoid": ("Hardsigmoid", (), {}, ROWS), "Hardswish": ("Hardswish", (), {}, ROWS),
    "Mish": ("Mish", (), {}, ROWS), "LogSigmoid": ("LogSigmoid", (), {}, ROWS), "Softsign": ("Softsign", (), {}, ROWS),
    "Tanhshrink": ("Tanhshrink", (), {}, ROWS), "Softplus": ("Softplus", (2.0,), {}, ROWS),
    "Softshrink": ("Softshrink", (0.3,), {}, ROWS), "Hardshrink": ("Hardshrink", (0.3,), {}, ROWS),
    "Threshold": ("Threshold", (0.1, 5.0), {}, ROWS), "GLU": ("GLU", (1,), {}, ROWS),
    "Softmin": ("Softmin", (1,), {}, ROWS),
    "InstanceNorm2d": ("InstanceNorm2d", (4,), {}, IMAGE),
    "InstanceNorm2d affine": ("InstanceNorm2d", (4,), {"affine": True}, IMAGE),
    "InstanceNorm1d": ("InstanceNorm1d", (4,), {}, SEQUENCE),
    "RMSNorm": ("RMSNorm", (4,), {}, ROWS), "RMSNorm eps": ("RMSNorm", ((5, 6),), {"eps": 0.1}, IMAGE),
    "ReflectionPad2d": ("ReflectionPad2d", ((1, 2, 0, 3),), {}, IMAGE),
    "ReflectionPad1d": ("ReflectionPad1d", (2,), {}, SEQUENCE),
    "ReplicationPad2d": ("ReplicationPad2d", (2,), {}, IMAGE),
    "ReplicationPad1d": ("ReplicationPad1d", (2,), {}, SEQUENCE),
    "CircularPad2d": ("CircularPad2d", (1,), {}, IMAGE), "ZeroPad2d": ("ZeroPad2d", (1,), {}, IMAGE),
    "ConstantPad2d": ("ConstantPad2d", (1, 3.5), {}, IMAGE), "PixelShuffle": ("PixelShuffle", (2,), {}, IMAGE),
    "Upsample": ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, IMAGE),
    "Unflatten": ("Unflatten", (1, (2, 2)), {}, ROWS),
    "RNNCell": ("RNNCell", (4, 5), {}, ROWS), "RNNCell relu": ("RNNCell", (4, 5), {"nonlinearity": "relu"}, ROWS),
    "GRUCell": ("GRUCell", (4, 5), {}, ROWS), "LSTMCell": ("LSTMCell", (4, 5), {}, ROWS),
    "RNN": ("RNN", (9, 5, 2), {}, SEQUENCE), "RNN relu": ("RNN", (9, 5), {
        "nonlinearity": "relu", "batch_first": True, "bidirectional": True}, SEQUENCE),
    "Linear of a vector": ("Linear", (4, 3), {}, ROWS[1:]),
}


def outcome(library, layer, array):
    """Outputs, and the gradients of the input and the parameters, by name, of their first one's weighted sum."""
    x = library.tensor(array)
    x.requires_grad = True
    made = layer(x)
    while isinstance(made, tuple):
        made = made[0]
    weights = np.random.default_rng(9).uniform(0.5, 1.5, tuple(made.shape)).astype("f4")
    (made * library.tensor(weights)).sum().backward()
    gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
    return made.detach().numpy(), x.grad.numpy(), gradients


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_pytorchs_name_computes_what_its_does(name):
    kind, arguments, options, shape = LAYERS[name]
    torch.manual_seed(0)
    peer = getattr(torch.nn, kind)(*arguments, **options)
    array = np.random.default_rng(0).standard_normal(shape).astype("f4")
    y, dx, gradients = outcome(torch, peer, array)
    with Runtime("cpu", memory_budget="4MiB", policy="none"):
        layer = getattr(nn, kind)(*arguments, **options)
        layer.load_state_dict(peer.state_dict())
        ours, our_dx, our_gradients = outcome(minidl, layer, array)
        assert repr(layer).startswith(f"{kind}(")
    np.testing.assert_allclose(ours, y, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(our_dx, dx, rtol=2e-5, atol=5e-6)
    assert our_gradients.keys() == gradients.keys()
    for key, right in gradients.items():
        np.testing.assert_allclose(our_gradients[key], right, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["LeakyReLU", "ELU", "SELU", "ReLU6", "Hardswish", "Mish", "Hardtanh"])
def test_an_activation_in_place_leaves_its_result_in_its_input(kind):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        x = minidl.tensor([-2.0, -0.5, 0.5, 7.0])
        expected = getattr(nn, kind)()(x).tolist()
        assert getattr(nn, kind)(inplace=True)(x) is x and x.tolist() == expected


def test_channels_are_dropped_whole_and_only_in_training():
    with Runtime("cpu", memory_budget="1MiB", policy="none", seed=3):
        layer, x = nn.Dropout2d(0.5), minidl.ones(8, 16, 2, 2)
        y = layer(x).numpy()
        assert set(np.unique(y)) == {0.0, 2.0} and (y == y[:, :, :1, :1]).all()
        assert layer.eval()(x) is x


def test_lists_of_parameters_are_those_of_their_module():
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        module = nn.Module()
        module.scales = nn.ParameterList([nn.Parameter(minidl.ones(2)), nn.Parameter(minidl.zeros(3))])
        assert [name for name, _ in module.named_parameters()] == ["scales.0", "scales.1"]
        assert len(module.scales) == 2 and module.scales[1].shape == (3,) and len(list(module.scales)) == 2
        with pytest.raises(TypeError, match="ParameterList takes tensors, not a int"):
            module.scales.append(3)
        made = nn.ParameterList([minidl.ones(2), minidl.zeros(3) + 1.0])
        assert [(p.tolist(), p.requires_grad) for p in made.parameters()] == [([1.0] * 2, True), ([1.0] * 3, True)]


@pytest.mark.parametrize("loss", ["BCELoss", "BCEWithLogitsLoss"])
def test_a_target_of_another_shape_is_not_broadcast_by_a_binary_loss(loss):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        x, target = minidl.full((4, 1), 0.5), minidl.zeros(4)
        for a, b in ((x, target), (target, x), (x, minidl.zeros(1, 1))):
            with pytest.raises(ValueError, match="both must have one shape"):
                getattr(nn, loss)()(a, b)
        assert getattr(nn, loss)()(x, target[:, None]).shape == ()


def test_a_function_of_init_returns_its_tensor_and_fills_what_has_no_elements():
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        for name in ("zeros_", "ones_", "normal_", "uniform_", "xavier_uniform_", "kaiming_uniform_",
                     "kaiming_normal_"):
            for shape in ((3, 2), (2, 0), (0, 0)):
                x = minidl.empty(*shape)
                assert getattr(nn.init, name)(x) is x
        assert nn.init.constant_(x, 3.0) is x
        layer, x = nn.Linear(0, 2), minidl.ones(3, 0)
        assert layer(x).tolist() == minidl.zeros(3, 2).tolist() and nn.Linear(2, 0)(minidl.ones(3, 2)).shape == (3, 0)


def test_a_parameter_is_one_for_isinstance_and_what_is_none_is_not():
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        norm = nn.BatchNorm1d(2)
        assert isinstance(norm.weight, nn.Parameter) and isinstance(nn.Parameter(minidl.ones(2)), nn.Parameter)
        assert issubclass(nn.Parameter, minidl.Tensor) and type(nn.Parameter(minidl.ones(2))) is minidl.Tensor
        for x in (norm.running_mean, minidl.ones(2), minidl.ones(2, requires_grad=True), norm.weight * 2.0, 3,
                  nn.Parameter(minidl.ones(2), requires_grad=False)):
            assert not isinstance(x, nn.Parameter)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: nn.Conv2d(4, 6, 3, groups=3), "3 groups do not divide 4 and 6 channels"),
    (lambda: nn.Conv2d(4, 6, 3, padding_mode="mirror"), "padding_mode must be one of zeros, reflect"),
    (lambda: nn.Conv2d(4, 6, 2, padding="same"), "padding='same' needs stride 1 and a window of odd size"),
    (lambda: nn.Conv2d(4, 6, 3, padding="full"), "padding must be numbers, 'same' or 'valid', not 'full'"),
    (lambda: nn.ConvTranspose2d(2, 2, 3, 2, 1, 2)(minidl.ones(1, 2, 3, 3)),
     "output_padding .2, 2. is not below the stride"),
    (lambda: nn.MaxPool1d(2, dilation=2)(minidl.ones(1, 1, 8)), "dilation must be 1 and return_indices False, not"),
    (lambda: nn.RNN(2, 3, nonlinearity="sin"), "nonlinearity must be tanh or relu, not 'sin'"),
    (lambda: nn.RNN(2, 3)(minidl.ones(4, 1, 2), minidl.ones(1, 5, 3)),
     "RNN: each part of a state needs the shape .1, 1, 3."),
    (lambda: nn.GRU(2, 3)(minidl.ones(4, 1, 2), minidl.ones(2, 1, 3)),
     "GRU: each part of a state needs the shape .1, 1, 3."),
    (lambda: nn.BatchNorm2d(3)(minidl.ones(2, 4, 2, 2)), "batch norm over .3. channels does not fit .2, 4, 2, 2."),
    (lambda: nn.BatchNorm2d(4)(minidl.ones(4, 4, 4)), "BatchNorm2d needs 4 dimensions, not the 3 of .4, 4, 4."),
    (lambda: nn.BatchNorm1d(4)(minidl.ones(2, 4, 3, 3)), "BatchNorm1d needs 2 or 3 dimensions, not the 4 of .2, 4, 3"),
    (lambda: nn.BatchNorm1d(4, eps=None), "BatchNorm1d: eps must be a number, not None"),
    (lambda: nn.LayerNorm(2, eps=None)(minidl.ones(2, 2)), "layer norm's eps takes a number, not a NoneType"),
    (lambda: nn.Linear(-1, 2), "a tensor cannot have the sizes .2, -1."),
    (lambda: nn.functional.cross_entropy(minidl.ones(2, 3), [0, 1]), "cross_entropy's target: a list is not a tensor"),
    (lambda: minidl.ones(1, 2).repeat(1.5, 1), "repeat takes integers, not .1.5, 1."),
    (lambda: minidl.ones(2) + np.ones(2, "f4"), "takes a number, not an array of shape .2.; minidl.tensor.x. makes a"),
    (lambda: minidl.FloatTensor((2, 3)), "FloatTensor: .2, 3. may be values or sizes"),
    (lambda: nn.PixelShuffle(2)(minidl.ones(4, 2, 2)), "pixel_shuffle: .4, 2, 2. is not"),
    (lambda: nn.functional.pixel_unshuffle(minidl.ones(1, 4, 2, 2), 0),
     "pixel_unshuffle: .1, 4, 2, 2. is not .* with r = 0"),
    (lambda: nn.GLU(2)(minidl.ones(4)), "glu: there is no axis 2 of .4."),
    (lambda: minidl.flatten(minidl.ones(2, 3), 1, 0), "flatten: dimension 1 comes after 0 in .2, 3."),
    (lambda: minidl.tensor([[1, 2], [3]]), "these data are no array: setting an array element with a sequence"),
    (lambda: nn.functional.pad(minidl.ones(2, 3), (4, 0), "reflect"),
     "3 elements cannot be padded by 4 and 0 in mode reflect"),
    (lambda: nn.functional.interpolate(minidl.ones(1, 1, 2, 2), 3, mode="spline"),
     "mode must be one of nearest, nearest-exact, linear"),
    (lambda: minidl.einsum("ij,jk->il", minidl.ones(2, 3), minidl.ones(3, 4)),
     "has labels that its operands do not"),
    (lambda: minidl.einsum("iij->j", minidl.ones(2, 2, 3)), "a label occurs twice in 'iij'"),
    (lambda: minidl.einsum("ij,jk", minidl.ones(2, 3)), "needs 2 operands, not 1"),
    (lambda: minidl.bmm(minidl.ones(2, 3, 4), minidl.ones(3, 4, 5)), "bmm: the batches have 2 and 3 matrices"),
    (lambda: minidl.mm(minidl.ones(2), minidl.ones(2, 2)), "mm needs tensors of 2 and 2 dimensions"),
])
def test_what_no_layer_or_function_can_do_is_refused_with_the_numbers_in_it(make, message):
    with Runtime("cpu", memory_budget="1MiB", policy="none"), pytest.raises(minidl.UserError, match=message):
        make()
