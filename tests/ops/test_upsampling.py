"""Values, by hand or by plain formulas, of the operations that are made of others: transposed convolution and averages
that leave padding out; and of resized images. (Their gradients are among gradient_cases.)"""

import functools

import numpy as np
import pytest

from bench.support.formulas import patches, unpatch
from minidl import Runtime, nn
from minidl.errors import ShapeError, UserError
from minidl.meta import float64
from minidl.ops import conv_transpose2d


@pytest.fixture
def runtime():
    with Runtime("cpu:virtual", memory_budget="4MiB", poisoned=True) as runtime:
        yield runtime


def test_a_2x2_transposed_convolution_at_stride_2_stamps_its_window_once_a_pixel(runtime):
    x = np.array([[[[1.0, 2.0]]]], np.float32)
    w = np.array([[[[1.0, 10.0], [100.0, 1000.0]]]], np.float32)
    y = conv_transpose2d(*map(runtime.tensor, (x, w, np.array([0.5], np.float32))), stride=2).numpy()
    assert y.tolist() == [[[[1.5, 10.5, 2.5, 20.5], [100.5, 1000.5, 200.5, 2000.5]]]]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [
    ((2, 2), (2, 2), (0, 0)), ((3, 3), (1, 1), (1, 1)), ((3, 2), (2, 1), (1, 0)), ((1, 1), (3, 2), (0, 0))])
def test_transposed_convolution_is_the_adjoint_of_convolution(runtime, kernel, stride, padding):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, 4, 3)), rng.standard_normal((5, 3, *kernel))
    shape = (2, 3, *((n - 1) * t - 2 * p + k for n, k, t, p in zip((4, 3), kernel, stride, padding, strict=True)))
    expected = unpatch(np.einsum("nkpq,kcrs->ncpqrs", x, w), shape, stride, padding)
    layer = nn.ConvTranspose2d(5, 3, kernel, stride, padding)
    layer.load_state_dict({"weight": w, "bias": np.arange(3.0)})
    y = layer(runtime.tensor(x.astype(np.float32))).numpy()
    np.testing.assert_allclose(y, expected + np.arange(3.0)[:, None, None], rtol=1e-5, atol=1e-5)


def test_what_a_transposed_convolution_cannot_do_is_one_error(runtime):
    x, w, b = (runtime.tensor(np.zeros(shape, np.float32)) for shape in ((1, 2, 3, 3), (2, 4, 2, 2), (3,)))
    with pytest.raises(ShapeError, match=r"weight \[2, 4, 2, 2\] \[K, C, R, S\] and bias \[3\] \[C\]"):
        conv_transpose2d(x, w, b)
    with pytest.raises(ShapeError, match=r"input \[2, 4, 2, 2\] \[N, K, P, Q\] does not fit"):
        conv_transpose2d(w, x)
    with pytest.raises(ShapeError, match="has no elements"):
        conv_transpose2d(x, w, padding=2)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [
    ((3, 3), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1)), ((2, 3), (1, 2), (1, 0)), ((2, 2), (2, 2), (0, 0))])
@pytest.mark.parametrize("counts", [True, False])
def test_an_average_counts_its_padding_or_leaves_it_out(runtime, kernel, stride, padding, counts):
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
    sums = patches(x, kernel, stride, padding).sum((-1, -2))
    count = kernel[0] * kernel[1] if counts else patches(np.ones_like(x), kernel, stride, padding).sum((-1, -2))
    y = nn.AvgPool2d(kernel, stride, padding, count_include_pad=counts)(runtime.tensor(x)).numpy()
    np.testing.assert_allclose(y, sums / count, rtol=1e-5, atol=1e-6)


def test_gelu_has_two_forms_and_no_third(runtime):
    x = runtime.tensor(np.array([-1.0, 0.0, 2.0], np.float32))
    # By hand: 2 P(2) = 2 * 0.97725; and u = 0.797885 (2 + 0.044715 * 8) = 1.88117, tanh u = 0.95451
    np.testing.assert_allclose(nn.GELU()(x).numpy(), [-0.158655, 0.0, 1.954500], rtol=1e-5)
    np.testing.assert_allclose(nn.GELU("tanh")(x).numpy(), [-0.158808, 0.0, 1.954598], rtol=1e-5)
    assert repr(nn.GELU()) == "GELU()" and repr(nn.GELU("tanh")) == "GELU(approximate='tanh')"
    with pytest.raises(UserError, match="approximate must be none or tanh, not 'erf'"):
        nn.GELU("erf")


def test_layers_show_what_they_were_made_with(runtime):
    assert repr(nn.ConvTranspose2d(4, 2, 2, 2)) == "ConvTranspose2d(4, 2, kernel_size=(2, 2), stride=(2, 2))"
    assert repr(nn.AvgPool2d(3, 1, 1, count_include_pad=False)) == (
        "AvgPool2d(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), count_include_pad=False)")


def test_a_norm_with_its_relu_is_the_norm_and_then_the_relu(runtime):
    x = runtime.tensor(np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32))
    together, norm = nn.BatchNormReLU2d(2), nn.BatchNorm2d(2)
    for mode in (True, False):
        apart = np.maximum(norm.train(mode)(x).numpy(), 0)
        np.testing.assert_allclose(together.train(mode)(x).numpy(), apart, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mode", "dims"), [("linear", 1), ("bilinear", 2), ("trilinear", 3)])
@pytest.mark.parametrize("size", [None, 5])
def test_positions_between_elements_are_as_exact_as_the_elements(runtime, mode, dims, size):
    """An input that is a product of one row for each dimension becomes the product of the resized rows."""
    rows = np.random.default_rng(6).standard_normal((dims, 4))
    wanted, scale = (6, 1 / 1.7) if size is None else (5, 4 / 5)  # 4 elements times 1.7 are 6
    places = np.clip((np.arange(wanted) + 0.5) * scale - 0.5, 0, None)
    resized = [np.interp(places, np.arange(4), row) for row in rows]
    product = functools.partial(functools.reduce, np.multiply.outer)
    y = nn.functional.interpolate(runtime.tensor(product(rows)[None, None]), size, None if size else 1.7, mode)
    assert y.dtype is float64
    np.testing.assert_allclose(y.numpy()[0, 0], product(resized), rtol=1e-13, atol=1e-14)


# Groups of channels ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["cpu", "sim:p100"])
def test_a_convolution_with_groups_is_one_call_and_each_of_its_gradients_too(device):
    with Runtime(device, memory_budget="64MiB") as runtime, runtime.iteration():
        x, w, b = (runtime.tensor(np.ones(s, "f4")) for s in ((2, 6, 9, 7), (9, 2, 3, 2), (9,)))
        x.requires_grad = w.requires_grad = True
        nn.functional.conv2d(x, w, b, padding=1, groups=3).sum().backward()
        names = [call.op for call in runtime.trace().calls]
    assert [name for name in names if "conv" in name] == ["conv2d", "conv2d_wgrad", "conv2d_dgrad"]
    assert not {"concat", "index", "mul", "add"} & {*names}


# Depthwise convolutions -----------------------------------------------------------------------------------------------
def depthwise_step(runtime, options, dtype="f8"):
    """The result and the gradients of a convolution with a window per channel; the operations that were called."""
    rng = np.random.default_rng(8)
    x, w = (runtime.tensor(rng.standard_normal(s).astype(dtype)) for s in ((2, 3, 9, 7), (3, 1, 3, 2)))
    x.requires_grad = w.requires_grad = True
    with runtime.iteration():
        y = nn.functional.conv2d(x, w, groups=3, **options)
        (y * y).sum().backward()
        names = {call.op for call in runtime.trace().calls}
    return [t.numpy() for t in (y, x.grad, w.grad)], names


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2, "padding": (2, 1)}, {"dilation": (2, 3)}],
                         ids=str)
def test_a_depthwise_convolution_on_the_cpu_is_one_operation_with_the_values_of_its_composition(runtime, options):
    found, names = depthwise_step(runtime, options)
    assert names >= {"depthwise", "depthwise_dgrad", "depthwise_wgrad"} and "index" not in names
    runtime.device.fuses_depthwise = lambda x: False
    composed, others = depthwise_step(runtime, options)
    assert "depthwise" not in others
    for one, other in zip(found, composed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    del runtime.device.fuses_depthwise


def test_a_depthwise_convolution_of_integers_is_their_sums(runtime):
    x, w = (np.arange(n).reshape(s) for n, s in ((54, (2, 3, 3, 3)), (12, (3, 1, 2, 2))))
    y = nn.functional.conv2d(runtime.tensor(x), runtime.tensor(w), groups=3).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
    np.testing.assert_array_equal(y, np.einsum("nchwij,cij->nchw", windows, w[:, 0]))


def test_a_simulator_composes_depthwise_convolutions_and_a_dry_run_of_the_cpu_does_not(runtime):
    with Runtime("sim:p100", memory_budget="64MiB") as simulated, simulated.iteration():
        x, w = (simulated.tensor(None, shape=s) for s in ((2, 3, 9, 7), (3, 1, 3, 2)))
        nn.functional.conv2d(x, w, groups=3)
        assert "depthwise" not in {call.op for call in simulated.trace().calls}
    assert runtime.device.dry_twin().fuses_depthwise(x.meta) and not simulated.device.dry_twin().fuses_depthwise(x.meta)


@pytest.mark.parametrize(("policy", "budget"), [("recompute", "560KiB"), ("passive", "560KiB"), ("none", "8MiB")])
def test_depthwise_convolutions_have_the_same_bits_in_little_memory(policy, budget):
    def trained(policy, budget):
        with Runtime("cpu", memory_budget=budget, policy=policy, seed=5) as runtime:
            net = nn.Sequential(*[layer for _ in range(4) for layer in (
                nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1), nn.ReLU())])
            for _ in range(2):
                with runtime.iteration():
                    x = runtime.tensor(np.random.default_rng(1).standard_normal((2, 8, 32, 32)).astype("f4"))
                    net(x).sum().backward()
            moved = runtime.stats()
            return [p.grad.numpy().tobytes() for p in net.parameters()], moved.peak_bytes
    (bits, peak), (managed, less) = trained("none", "64MiB"), trained(policy, budget)
    assert bits == managed and (policy == "none" or less < peak)


def test_a_depthwise_convolution_that_does_not_fit_is_refused_with_the_numbers(runtime):
    x, w = runtime.tensor(np.zeros((2, 3, 4, 4))), runtime.tensor(np.zeros((3, 1, 3, 3)))
    with pytest.raises(ShapeError, match=r"a 7x7 window does not fit \[2, 3, 4, 4\] with padding \(1, 1\)"):
        nn.functional.conv2d(x, w, padding=1, dilation=3, groups=3)
    with pytest.raises(ShapeError, match=r"dilation \(0, 1\) is below 1"):
        nn.functional.conv2d(x, w, dilation=(0, 1), groups=3)
