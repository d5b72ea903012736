"""Custom functions, L-BFGS, save and load, the Transformer, tensors of PyTorch: public programs need these, too."""

import numpy as np
import pytest

import minidl
from minidl import Runtime, ShapeError, UserError, nn, optim
from minidl.autograd import Function
from minidl.nn import functional as F


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * 2.0 * x * ctx.factor, None


@pytest.mark.parametrize("policy", ["none", "passive", "recompute", "auto"])
def test_a_custom_function_has_the_gradient_that_it_says_under_every_policy(policy):
    with Runtime("cpu:virtual", memory_budget="1MiB", policy=policy):
        w = minidl.tensor([1.0, 2.0], requires_grad=True)
        (Scaled.apply(w * 3.0, 2.0) * 5.0).sum().backward()
        assert w.grad.tolist() == [180.0, 360.0]  # d/dw 5 * 2 (3 w)^2 = 180 w


def test_a_custom_function_that_returns_too_few_gradients_says_how_many():
    class Short(Scaled):
        @staticmethod
        def backward(ctx, gradient):
            return gradient
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        w = minidl.tensor([1.0], requires_grad=True)
        with pytest.raises(UserError, match="returned 1 gradients for 2 arguments"):
            Short.apply(w, 2.0).sum().backward()


def test_a_custom_functions_gradient_has_the_shape_and_dtype_of_its_argument():
    def run(gradient):
        class Summed(Function):
            @staticmethod
            def forward(ctx, x):
                return x.sum()

            @staticmethod
            def backward(ctx, dy):
                return gradient(dy)
        w = minidl.tensor([1.0, 2.0], requires_grad=True)
        Summed.apply(w).backward()
        return w.grad
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        for wrong in (lambda dy: dy, lambda dy: dy[None], lambda dy: dy.expand(3), lambda dy: dy.expand(2, 3)):
            with pytest.raises(ShapeError, match=r"Summed.backward\(\) returned a gradient .* for an argument \[2\]"):
                run(wrong)
        with pytest.raises(TypeError, match="returns tensors and None, not a float"):
            run(lambda dy: 1.0)
        for dtype in (minidl.float64, minidl.int64):
            assert run(lambda dy, dtype=dtype: dy.expand(2).to(dtype)).dtype is minidl.float32
        assert run(lambda dy: dy.expand(3, 2)).tolist() == [3.0, 3.0]  # the argument was broadcast: its uses add up


def test_a_hooks_gradient_has_the_shape_and_dtype_of_the_gradient():
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        for wrong in (lambda g: g[:1], lambda g: g.sum(), lambda g: g.double()):
            for leaf in (False, True):
                x = minidl.tensor([1.0, 2.0], requires_grad=True)
                y = x * 2.0
                (x if leaf else y).register_hook(wrong)
                with pytest.raises(ShapeError, match=r"a hook returned float(32|64)\[.*\] for a gradient float32\[2\]"):
                    y.sum().backward()
                assert x.grad is None
        x = minidl.tensor([1.0, 2.0], requires_grad=True)
        x.register_hook(lambda g: 3.0)
        with pytest.raises(TypeError, match="a hook returns a gradient or None, not a float"):
            x.sum().backward()


def test_saved_values_come_back_as_they_were(tmp_path):
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        model = nn.Linear(2, 3)
        kept = {"model": model.state_dict(), "epoch": 3, "names": ["a", "b"], "pair": (1, 2.5, None, True),
                "x": minidl.tensor([1.5, -2.0]), 7: np.array([1, 2], "i4")}
        minidl.save(kept, tmp_path / "it.pt")
        found = minidl.load(tmp_path / "it.pt", map_location="cpu")
        assert found.keys() == kept.keys() and found["pair"] == kept["pair"] and found["names"] == ["a", "b"]
        assert found["x"].tolist() == [1.5, -2.0] and found[7].dtype == np.int32 and found["epoch"] == 3
        model.load_state_dict(found["model"])


@pytest.mark.parametrize("old", [False, True])
def test_a_file_of_pytorch_is_refused_with_the_command_that_converts_it(tmp_path, old):
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    torch.save({"weight": torch.ones(2)}, tmp_path / "weights.pt", _use_new_zipfile_serialization=not old)
    with pytest.raises(UserError, match="at byte 0: this is a file of PyTorch, .* `minidl convert FILE NEW`"):
        minidl.load(tmp_path / "weights.pt")


def test_what_no_file_has_is_refused_by_its_place(tmp_path):
    with pytest.raises(UserError, match=r"it\['a'\]\[1\] is a set"):
        minidl.save({"a": [1, {2}]}, tmp_path / "it.pt")
    assert not (tmp_path / "it.pt").exists()


def test_lbfgs_finds_the_minimum_of_a_parabola_in_one_step():
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        w = minidl.tensor([3.0, -4.0], requires_grad=True)
        optimizer = optim.LBFGS([w], lr=1.0)

        def closure():
            optimizer.zero_grad()
            loss = ((w - minidl.tensor([1.0, 2.0])) ** 2).sum()
            loss.backward()
            return loss
        assert optimizer.step(closure).item() == 40.0  # 2^2 + 6^2
        np.testing.assert_allclose(w.tolist(), [1.0, 2.0], atol=1e-5)
        with pytest.raises(UserError, match="needs a function that computes the loss"):
            optimizer.step()


def test_a_padding_row_is_zero_and_is_not_trained():
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        table = nn.Embedding(4, 2, padding_idx=-1)
        table(minidl.tensor([[0, 3, 3], [1, 0, 3]])).sum().backward()
        assert table.weight[3].tolist() == [0.0, 0.0] and table.weight.grad.tolist() == [[2, 2], [1, 1], [0, 0], [0, 0]]
        with pytest.raises(UserError, match="padding_idx 4 is out of range for 4 rows"):
            nn.Embedding(4, 2, padding_idx=4)


@pytest.mark.parametrize("name", ["relu", "elu", "leaky_relu", "silu", "relu6", "hardtanh", "mish"])
def test_a_function_in_place_leaves_its_result_in_its_operand(name):
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        x = minidl.tensor([-2.0, 0.5])
        expected = getattr(F, name)(x).tolist()
        assert x.tolist() == [-2.0, 0.5]
        assert getattr(F, name)(x, inplace=True) is x and x.tolist() == expected


def test_pytorchs_tensors_are_taken_as_they_are():
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        model = nn.Sequential(nn.Linear(2, 3))
        loss = nn.CrossEntropyLoss()(model(torch.ones(4, 2)), torch.tensor([0, 1, 2, 0]))
        assert loss.item() == nn.CrossEntropyLoss()(model(minidl.ones(4, 2)), minidl.tensor([0, 1, 2, 0])).item()


RNG = np.random.default_rng(0)
X, M = RNG.standard_normal((5, 3, 8)).astype("f4"), RNG.standard_normal((6, 3, 8)).astype("f4")
LATER, PADDED = np.triu(np.ones((5, 5), bool), 1), np.array([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], bool)
LAYERS = {
    "attention": ("MultiheadAttention", (8, 2), {}, (X, X, X), {"key_padding_mask": PADDED, "attn_mask": LATER}),
    "attention without weights": ("MultiheadAttention", (8, 2), {"batch_first": True}, (X, X, X),
                                  {"need_weights": False}),
    "attention over others": ("MultiheadAttention", (8, 2), {"bias": False}, (X, M, M),
                              {"average_attn_weights": False}),
    "one sequence": ("MultiheadAttention", (8, 2), {}, (X[:, 0], M[:, 0], M[:, 0]), {}),
    "encoder layer": ("TransformerEncoderLayer", (8, 2, 16, 0.0), {}, (X,), {"src_mask": LATER}),
    "norm first": ("TransformerEncoderLayer", (8, 2, 16, 0.0, "gelu"), {"norm_first": True, "batch_first": True}, (X,),
                   {"src_key_padding_mask": np.array([[0, 0, 1]] * 5, bool)}),
    "decoder layer": ("TransformerDecoderLayer", (8, 2, 16, 0.0), {}, (X, M), {"tgt_mask": LATER}),
    "whole": ("Transformer", (8, 2, 1, 2, 16, 0.0), {}, (M, X), {"tgt_mask": LATER}),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")  # of PyTorch's, about its own speed
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_the_transformer_computes_what_pytorchs_does(name):
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    kind, arguments, options, inputs, masks = LAYERS[name]

    def outcome(library, layer):
        xs = [library.tensor(a.copy(), requires_grad=True) for a in inputs]
        y = layer(*xs, **{key: library.tensor(m) if isinstance(m, np.ndarray) else m for key, m in masks.items()})
        y = y[0] if isinstance(y, tuple) else y
        (y * y * y).sum().backward()
        return [y.detach().numpy(), *(x.grad.numpy() for x in xs), *(p.grad.numpy() for p in layer.parameters())]
    torch.manual_seed(0)
    peer = getattr(torch.nn, kind)(*arguments, **options)
    right = outcome(torch, peer)
    with Runtime("cpu", memory_budget="8MiB", policy="none"):
        layer = getattr(nn, kind)(*arguments, **options)
        layer.load_state_dict(peer.state_dict())
        for ours, theirs in zip(outcome(minidl, layer), right, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


def test_a_function_of_pytorch_as_activation_means_minidls_function_of_its_name_and_a_module_is_refused():
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    with Runtime("cpu", memory_budget="8MiB", policy="none"):
        for activation in (torch.nn.functional.gelu, torch.nn.functional.relu, torch.tanh):  # two are made by C
            for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
                layer = kind(8, 2, 16, 0.0, activation)
                assert layer.activation is getattr(F, activation.__name__)
                assert layer(*[minidl.tensor(X)] * (1 + layer.attends_others)).shape == X.shape
        for activation, name in ((torch.nn.GELU(), "GELU"), (torch.erfinv, "erfinv")):
            with pytest.raises(UserError, match=f"activation is PyTorch's {name}: pass a function or module of minidl"):
                nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation)
        own = nn.GELU()
        assert nn.TransformerEncoderLayer(8, 2, 16, 0.0, own).activation is own


def test_a_layer_that_is_told_of_a_causal_mask_and_has_none_is_refused():
    with Runtime("cpu:virtual", memory_budget="4MiB", policy="none"):
        x, mask = minidl.ones(3, 1, 8), minidl.nn.Transformer.generate_square_subsequent_mask(3)
        encoder = minidl.nn.TransformerEncoder(minidl.nn.TransformerEncoderLayer(8, 2, 16), 1)
        decoder = minidl.nn.TransformerDecoder(minidl.nn.TransformerDecoderLayer(8, 2, 16), 1)
        encoder(x, mask, is_causal=True)
        decoder(x, x, mask, mask, tgt_is_causal=True, memory_is_causal=True)
        for run in (lambda: encoder(x, is_causal=True), lambda: decoder(x, x, tgt_is_causal=True),
                    lambda: decoder(x, x, memory_is_causal=True)):
            with pytest.raises(UserError, match="is_causal needs attn_mask"):
                run()


def test_a_padding_row_counts_from_the_end_also_in_given_embeddings():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        table = minidl.nn.Embedding.from_pretrained(minidl.ones(4, 2), freeze=False, padding_idx=-1)
        table(minidl.tensor([0, 3])).sum().backward()
        assert table.weight.grad[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_negative_seed_is_one():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        drawn = []
        for seed in (-1, -1, -2):
            minidl.manual_seed(seed)
            drawn.append(minidl.randn(3).tolist())
        assert drawn[0] == drawn[1] != drawn[2]


def test_sizes_that_do_not_fit_an_einsum_are_one_error_however_many_operands_there_are():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none"):
        x = minidl.ones(2, 3)
        for equation, operands in (("ij,jk,kl->il", (x, x, x)), ("ij,jk->ik", (x, x)), ("ij,jk,kl->iz", (x, x.T, x))):
            with pytest.raises(minidl.errors.ShapeError, match="einsum|broadcast"):
                minidl.einsum(equation, *operands)
