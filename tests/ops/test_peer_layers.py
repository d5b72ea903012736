"""Layers and losses beside PyTorch's of the same name, weights and arguments: values and all gradients."""

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn
from minidl.nn import functional as F

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")



LAYERS = {
    "LSTM": ((4, 5), {"num_layers": 2, "batch_first": True}, (3, 6, 4)), "LSTM in both directions": (
        (4, 5), {"bidirectional": True}, (6, 3, 4)),
    "GRU": ((4, 5), {"num_layers": 2, "bidirectional": True}, (6, 3, 4)), "GRU without bias": (
        (4, 5), {"bias": False, "batch_first": True}, (3, 6, 4)),
    "GroupNorm": ((2, 6), {}, (3, 6, 4, 5)), "GroupNorm of one": ((6, 6), {}, (3, 6, 7)),
    "BatchNorm1d": ((6,), {}, (5, 6)), "BatchNorm1d of sequences": ((6,), {}, (5, 6, 3)), "SiLU": ((), {}, (3, 70)),
    "LogSoftmax": ((1,), {}, (3, 5, 4)), "Softmax": ((1,), {}, (3, 5, 4)),
    "ConvTranspose2d": ((3, 2, 3), {"stride": 2, "padding": 1}, (2, 3, 5, 4))}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_pytorchs(name):
    args, options, shape = LAYERS[name]
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype("f4")
    torch.manual_seed(1)
    theirs = getattr(torch.nn, name.split()[0])(*args, **options)
    x = torch.tensor(values, requires_grad=True)
    made = theirs(x)
    right, *rest = made if isinstance(made, tuple) else (made,)
    projection = rng.standard_normal(right.shape).astype("f4")
    (right * torch.tensor(projection)).sum().backward()
    with Runtime("cpu", memory_budget="16MiB", poisoned=True):
        ours = getattr(nn, name.split()[0])(*args, **options)
        ours.load_state_dict({key: value.detach().numpy() for key, value in theirs.state_dict().items()
                              if "running" not in key}, strict=False)
        y = minidl.tensor(values, requires_grad=True)
        found = ours(y)
        outputs = found if isinstance(found, tuple) else (found,)
        near(outputs[0], right)
        for one, other in zip(flat(outputs[1:]), flat(rest), strict=True):
            near(one, other)
        (outputs[0] * minidl.tensor(projection)).sum().backward()
        near(y.grad, x.grad)
        named = dict(theirs.named_parameters())
        assert named.keys() == dict(ours.named_parameters()).keys()
        for key, parameter in ours.named_parameters():
            near(parameter.grad, named[key].grad)


def flat(values):
    return [v for value in values for v in (value if isinstance(value, tuple) else (value,))]


def near(found, right):
    right = right.detach().numpy()
    assert found.shape == right.shape
    np.testing.assert_allclose(found.numpy(), right, rtol=2e-5, atol=1e-5 * max(1.0, abs(right).max()))


LOSSES = {
    "nll_loss": ("labels", {}), "nll_loss of some": ("labels", {"ignore_index": 1}), "cross_entropy": ("labels", {}),
    "cross_entropy of some": ("labels", {"ignore_index": 1, "reduction": "none"}),
    "cross_entropy of all": ("labels", {"reduction": "sum"}), "cross_entropy of images": ("images", {}),
    "cross_entropy smoothed": ("labels", {"label_smoothing": 0.1}), "mse_loss": ("values", {}),
    "l1_loss": ("values", {"reduction": "sum"}), "binary_cross_entropy_with_logits": ("shares", {}),
    "binary_cross_entropy": ("shares", {"reduction": "none"}), "layer_norm": ("", {"normalized_shape": (3, 4)}),
    "group_norm": ("", {"num_groups": 3})}


@pytest.mark.parametrize("name", LOSSES)
def test_a_function_is_pytorchs(name):
    kind, options = LOSSES[name]
    rng, function = np.random.default_rng(2), name.split()[0]
    shape = (5, 3, 4) if kind in ("images", "") else (5, 3)
    values = rng.standard_normal(shape).astype("f4") * 3
    if function == "binary_cross_entropy":
        values = rng.uniform(0.01, 0.99, shape).astype("f4")
    targets = {"labels": lambda: [rng.integers(0, 3, 5)], "images": lambda: [rng.integers(0, 3, (5, 4))],
               "values": lambda: [rng.standard_normal(shape).astype("f4")], "": lambda: [],
               "shares": lambda: [rng.uniform(0, 1, shape).astype("f4")]}[kind]()
    x = torch.tensor(values, requires_grad=True)
    right = getattr(torch.nn.functional, function)(x, *map(torch.tensor, targets), **options)
    (right * right).sum().backward()
    with Runtime("cpu", memory_budget="16MiB", poisoned=True):
        y = minidl.tensor(values, requires_grad=True)
        found = getattr(F, function)(y, *map(minidl.tensor, targets), **options)
        near(found, right)
        (found * found).sum().backward()
        near(y.grad, x.grad)


def test_attention_with_masks_is_pytorchs():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 3, n, 4)).astype("f4") for n in (5, 6, 6))
    seen = rng.random((5, 6)) > 0.3
    seen[:, 0] = True
    for mask in (None, seen, np.where(seen, 0, -1.0).astype("f4")):
        given = None if mask is None else torch.tensor(mask)
        right = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), attn_mask=given)
        with Runtime("cpu", memory_budget="16MiB"):
            ours = None if mask is None else minidl.tensor(mask)
            near(F.scaled_dot_product_attention(*map(minidl.tensor, (q, k, v)), attn_mask=ours), right)
