"""Attention as one operation: the same as its composition, without a tensor of scores; who decides; what it costs."""

import numpy as np
import pytest

from minidl import Runtime, current_runtime, nn, no_grad, ops
from minidl.cli.app.fit import Setup, TrainingParts
from minidl.device import create
from minidl.dispatch import apply_all
from minidl.errors import ShapeError, UserError
from minidl.meta import bfloat16, float16, float32, float64, meta
from minidl.models import bert, gpt
from minidl.models.text import Text
from minidl.ops.attention import ATTENTION, ATTENTION_GRAD
from minidl.optim import SGD
from minidl.tensor import Tensor

FUSED = {"scaled_dot_product_attention", "scaled_dot_product_attention_grad"}
N, LENGTH, HEADS, DEPTH = 2, 150, 3, 8  # more rows than a tile of scores has
BUDGET = "64MiB"


def leaf(values, *, requires_grad=True) -> Tensor:
    tensor = current_runtime().tensor(values)
    tensor.requires_grad = requires_grad
    return tensor


def masks(kind):
    """A mask of [N, LENGTH] positions, of which the last quarter is hidden; of everything; causal; or none."""
    if kind == "keys":
        seen = np.arange(LENGTH) < 3 * LENGTH // 4
        return leaf(np.where(seen, 0.0, -1e4) * np.ones((N, 1, 1, 1)), requires_grad=False)
    if kind == "scores":
        return leaf(np.random.default_rng(1).standard_normal((N, HEADS, LENGTH, LENGTH)), requires_grad=False)
    return nn.Causal() if kind == "causal" else None


def attended(attention, kind, p, *, training=True):
    """What ``attend`` gives, and the gradients of q, k and v; and the operations that were called."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((N, LENGTH, HEADS * DEPTH)) for _ in range(4)]
    with Runtime("cpu:virtual", memory_budget=BUDGET, attention=attention, poisoned=True, seed=3) as runtime:
        leaves = [leaf(a) for a in arrays[:3]]
        dropout = nn.Dropout(p).train(training)
        with runtime.iteration():
            y = nn.attend(leaves[0].alias(), *leaves[1:], masks(kind), heads=HEADS, dropout=dropout)
            value = y.numpy()
            if training:
                y.backward(leaf(arrays[3], requires_grad=False))
            names = {call.op for call in runtime.trace().calls}
        return [value, *(x.grad.numpy() for x in leaves if training)], names


@pytest.mark.default(p=[0.3])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("kind", [None, "keys", "scores", "causal"])
def test_one_operation_gives_what_the_composition_gives_with_the_same_zeros_of_dropout(kind, p):
    (fused, names), (composed, others) = attended("fused", kind, p), attended("composed", kind, p)
    assert names >= FUSED and not names & {"softmax", "matmul", "dropout", "contiguous"}
    assert "softmax" in others and not others & FUSED
    for one, other in zip(fused, composed, strict=True):  # sums in another order, in float64
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_in_evaluation_nothing_is_dropped():
    (fused, _), (composed, _) = (attended(how, "keys", 0.3, training=False) for how in ("fused", "composed"))
    np.testing.assert_allclose(fused[0], composed[0], rtol=1e-10, atol=1e-12)


def test_no_tensor_of_scores_is_ever_there():  # 4 heads x 400 x 400 x 4 bytes = 2.4 MiB; q, k, v and so on 25 kB each
    def peak(attention):
        with Runtime("cpu:virtual", memory_budget=BUDGET, attention=attention) as runtime:
            x = leaf(np.ones((1, 400, 16), np.float32))
            nn.attend(x * 1.0, x * 1.0, x * 1.0, nn.Causal(), heads=4, dropout=nn.Dropout(0.1)).backward(
                leaf(np.ones((1, 400, 16), np.float32), requires_grad=False))
            return runtime.stats().peak_bytes
    scores = 4 * 400 * 400 * 4
    assert peak("fused") < scores / 8 and peak("composed") > 2 * scores


# Values that are hard -------------------------------------------------------------------------------------------------
def forward(q, k, v, mask=None, **attrs):
    with Runtime("cpu:virtual", memory_budget=BUDGET) as runtime, no_grad():
        tensors = [runtime.tensor(a) for a in (q, k, v, *(() if mask is None else (mask,)))]
        return ops.scaled_dot_product_attention(*tensors, **attrs).numpy()


def test_scores_that_exp_could_not_hold_are_no_trouble():  # scores of +-10,000: the largest takes all
    q = np.full((1, 300, 1), 100.0, np.float32)
    k = np.linspace(-100, 100, 300, dtype=np.float32).reshape(1, 300, 1)
    v = np.arange(300, dtype=np.float32).reshape(1, 300, 1)
    np.testing.assert_allclose(forward(q, k, v, heads=1), 299.0, rtol=1e-6)
    np.testing.assert_allclose(forward(q, k[:, ::-1].copy(), v, heads=1), 0.0, atol=1e-6)


def test_tiles_of_keys_that_nobody_sees_count_nothing_and_a_row_that_sees_nothing_is_nan():
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, n, 4)) for n in (3, 500, 500))
    mask = np.full((1, 1, 3, 500), -np.inf)
    mask[..., :2, 450:] = 0.0  # the first two tiles of 192 keys are hidden from everybody, all of them from row 2
    y = forward(q, k, v, mask, heads=2)
    np.testing.assert_allclose(y[:, :2], forward(q[:, :2], k[:, 450:], v[:, 450:], heads=2), rtol=1e-12)
    assert np.isnan(y[:, 2]).all()


def test_a_nan_reaches_its_own_rows_alone():
    q, k, v = (np.random.default_rng(n).standard_normal((1, 200, 4)) for n in range(3))
    q[0, 7, 0] = np.nan
    y = forward(q, k, v, heads=2)
    assert np.isnan(y[0, 7, :2]).all() and np.isnan(y).sum() == 2


# 16-bit floats --------------------------------------------------------------------------------------------------------
def exact(q, k, v, mask, dy, factor):
    """The result of attention of [N, heads, L, D], and the gradients of q, k, v and the mask [L, S], in float64."""
    scores = factor * q @ k.swapaxes(-1, -2) + mask
    seen = np.exp(scores - scores.max(-1, keepdims=True))
    seen /= seen.sum(-1, keepdims=True)
    change = dy @ v.swapaxes(-1, -2)
    change = seen * (change - (change * seen).sum(-1, keepdims=True))
    return [seen @ v, factor * change @ k, factor * change.swapaxes(-1, -2) @ q, seen.swapaxes(-1, -2) @ dy,
            change.sum((0, 1))]


@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize(("attention", "factor", "trained"), [
    ("composed", None, True), ("composed", 0.7, False), ("fused", None, False)])
def test_of_16_bit_floats_only_results_are_rounded_and_neither_scores_nor_probabilities(dtype, attention, factor,
                                                                                        trained):
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(s) * f for s, f in (((2, 3, 5, 8), 6), ((2, 3, 7, 8), 4), ((2, 3, 7, 8), 4),
                                                     ((5, 7), 9), ((2, 3, 5, 8), 1))]  # scores up to some 100
    with Runtime("cpu:virtual", memory_budget=BUDGET, attention=attention):
        leaves = [leaf(leaf(a, requires_grad=False).cast(dtype).numpy()) for a in arrays]
        q, k, v, mask, dy = leaves
        mask.requires_grad = trained
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=factor)
        assert y.dtype is dtype
        y.backward(dy)
        found = [y, *(t.grad for t in ((q, k, v, mask) if trained else (q, k, v)))]
        found = [t.cast(float32).numpy() for t in found]
        values = [t.cast(float32).numpy().astype("f8") for t in leaves]
    unit = 2.0 ** (-8 if dtype is bfloat16 else -11)  # half the distance between 1 and the next number
    for one, right in zip(found, exact(*values, factor or 8 ** -0.5), strict=trained):
        # Gradients are rounded once as one tensor of [N, heads, L, D]; sums over 2 x 3 heads of the mask, once more.
        np.testing.assert_allclose(one, right, rtol=2 * unit, atol=unit * np.abs(right).max())


def test_weights_of_16_bit_attention_that_are_asked_for_follow_from_float32_scores():
    rng = np.random.default_rng(5)
    with Runtime("cpu:virtual", memory_budget=BUDGET, precision="bf16", seed=2):
        layer = nn.MultiheadAttention(8, 2, batch_first=True)
        x = leaf(rng.standard_normal((2, 6, 8)) * 12, requires_grad=False).cast(bfloat16)
        y, weights = layer(x, x, x, average_attn_weights=False)
        assert y.dtype is weights.dtype is bfloat16
        q, k = (layer._heads(x, number).cast(float32).numpy().astype("f8") for number in (0, 1))
        found = weights.cast(float32).numpy()
    right = np.exp(q @ k.swapaxes(-1, -2) / 2)
    np.testing.assert_allclose(found, right / right.sum(-1, keepdims=True), rtol=2.0**-8, atol=1e-6)


def test_a_simulator_composes_16_bit_attention_in_16_bits_as_the_frameworks_of_its_calibration():
    with Runtime("sim:p100", memory_budget=BUDGET, precision="bf16") as runtime:
        x = runtime.tensor(None, shape=X, dtype=bfloat16)
        with runtime.iteration():
            nn.attend(x, x, x, heads=2, dropout=nn.Dropout(0.0))
            assert "cast" not in {call.op for call in runtime.trace().calls}


# What is refused ------------------------------------------------------------------------------------------------------
X = (2, 4, 6)


@pytest.mark.parametrize(("shapes", "attrs", "words"), [
    ((X, (2, 4, 5), (2, 4, 5)), {}, r"q \[N, L, width\] and k, v \[N, S, width\], not \[2, 4, 6\], \[2, 4, 5\]"),
    ((X, (2, 3, 6), (2, 4, 6)), {}, "and k, v"), (((2, 6), (2, 6), (2, 6)), {}, "attention needs q"),
    ((X, X, X), {"heads": 4}, "a width of 6 cannot be divided among 4 attention heads"),
    ((X, (2, 5, 6), (2, 5, 6)), {"causal": True}, "as many keys as queries, not 5 for 4"),
    ((X, X, X), {"p": 1.0}, r"p must be in \[0, 1\), not 1.0"),
    ((X, X, X, (2, 3)), {}, r"shapes \[2, 3, 4, 4\] and \[2, 3\] do not broadcast"),
    ((X, X, X, (5, 2, 3, 4, 4)), {}, r"mask float64\[5, 2, 3, 4, 4\] does not broadcast to float64\[2, 3, 4, 4\]"),
])
def test_operands_that_do_not_fit_each_other_are_refused_with_their_shapes(shapes, attrs, words):
    with Runtime("cpu:virtual", memory_budget=BUDGET) as runtime, pytest.raises(ShapeError, match=words):
        ops.scaled_dot_product_attention(*(runtime.tensor(np.zeros(s)) for s in shapes), **{"heads": 3, **attrs})


def test_operands_of_different_dtypes_are_refused_but_for_a_float32_mask_beside_halves():
    with Runtime("cpu:virtual", memory_budget=BUDGET) as runtime:
        wide, half = runtime.tensor(np.zeros(X, np.float32)), runtime.tensor(np.zeros(X, np.float16))
        with pytest.raises(ShapeError, match="of one dtype, not float16, float16, float32"):
            ops.scaled_dot_product_attention(half, half, wide, heads=2)
        mask = runtime.tensor(np.zeros((4, 4), np.float32))
        assert ops.scaled_dot_product_attention(half, half, half, mask, heads=2).dtype.name == "float16"
        with pytest.raises(ShapeError, match="mask"):
            ops.scaled_dot_product_attention(wide, wide, wide, runtime.tensor(np.zeros((4, 4))), heads=2)


def test_the_gradient_of_another_attention_is_refused():
    with Runtime("cpu:virtual", memory_budget=BUDGET) as runtime:
        half, sums = runtime.tensor(np.zeros(X, np.float16)), runtime.tensor(np.zeros((2, 3, 4), np.float16))
        with pytest.raises(ShapeError, match="does not fit .* and float16.2, 3, 4."):  # cuDNN would read float32
            apply_all(ATTENTION_GRAD, *[half] * 5, sums, heads=3, causal=False, p=0.0, seed=0)


def test_a_mask_that_is_trained_has_its_gradient_from_the_composition():
    with Runtime("cpu:virtual", memory_budget=BUDGET, attention="fused"):
        x, mask = leaf(np.ones(X)), leaf(np.zeros((4, 4)))
        with pytest.raises(UserError, match="no gradient for its mask"):
            ops.scaled_dot_product_attention(x, x, x, mask, heads=2)
        nn.attend(x * 1.0, x, x, mask, heads=2, dropout=nn.Dropout(0.0)).sum().backward()
        assert mask.grad.shape == (4, 4)


# Who decides ----------------------------------------------------------------------------------------------------------
CONFIG = bert.BertConfig(2, 32, 4, vocab_size=40, max_position_embeddings=24)
TEXT = Text(length=24, predictions=5, vocabulary=40)


def networks():
    """(model, batch) of two small transformers."""
    runtime = current_runtime()
    yield bert.BertForPreTraining(CONFIG), bert.synthetic_batch(runtime, 2, TEXT)
    yield gpt.GPT(gpt.GPTConfig(2, 32, 4, vocab_size=40, n_positions=24)), gpt.synthetic_batch(runtime, 2, TEXT)


def called(runtime):
    """The operations of a step of each network."""
    found = []
    for model, batch in networks():
        with runtime.iteration():
            model(*batch).backward()
            found.append([call.op for call in runtime.trace().calls])
    return found


def test_by_default_the_cpu_has_attention_of_16_bit_floats_as_one_operation_unless_values_have_another_size():
    with Runtime("cpu:virtual", memory_budget=BUDGET) as runtime:
        x, v = (runtime.tensor(np.ones((1, 2, 4, size))).cast(bfloat16) for size in (6, 5))
        for values, fused in ((x, True), (v, False)):
            with runtime.iteration():
                y = nn.functional.scaled_dot_product_attention(x, x, values)
                assert (y.shape, y.dtype) == (values.shape, bfloat16) and y.cast(float32).numpy().min() == 1
                assert bool(FUSED & {call.op for call in runtime.trace().calls}) == fused


@pytest.mark.parametrize("device", ["cpu:virtual", "sim:p100"])
def test_attention_is_composed_unless_it_is_asked_for_as_one_operation(device):
    calls = {}
    for attention in (None, "auto", "composed", "fused"):
        with Runtime(device, memory_budget=BUDGET, attention=attention) as runtime:
            calls[attention] = called(runtime)
    assert calls[None] == calls["auto"] == calls["composed"]
    for composed, fused in zip(calls["composed"], calls["fused"], strict=True):
        assert composed.count("softmax") == 2 and not set(composed) & FUSED
        assert [fused.count(name) for name in sorted(FUSED)] == [2, 2] and not {"softmax", "softmax_grad"} & set(fused)


def test_attention_has_three_names():
    with pytest.raises(UserError, match="attention is auto, composed or fused, not 'flash'"):
        Runtime("sim:p100", attention="flash")


def test_a_device_decides_for_its_runtimes_and_for_their_twins():
    device = create("sim:p100")
    device.attention = "fused"
    text = Text(length=256, predictions=5, vocabulary=40)

    def program(batch):
        model = bert.BertForPreTraining(bert.BertConfig(1, 16, 4, vocab_size=40))
        return TrainingParts(lambda: model(*bert.synthetic_batch(current_runtime(), batch, text)).backward())
    fused = Setup(program, device, "none", 0)
    scores = 4 * 4 * 256 * 256
    assert fused.demand(1).largest_op_bytes < scores
    faster = fused.unmanaged_seconds(8)
    device.attention = "composed"
    assert fused.demand(1).largest_op_bytes >= 2 * scores and fused.unmanaged_seconds(8) != faster


def test_causal_layers_share_one_mask_and_need_none_as_one_operation():
    for attention, uploads in (("composed", 3), ("fused", 2)):  # the two others: the batch
        with Runtime("cpu:virtual", memory_budget=BUDGET, attention=attention) as runtime:
            model = gpt.GPT(gpt.GPTConfig(2, 32, 4, vocab_size=40, n_positions=24))
            with runtime.iteration():
                model(*gpt.synthetic_batch(runtime, 2, TEXT)).backward()
                assert [call.op for call in runtime.trace().calls].count("upload") == uploads


def test_steps_that_drop_other_elements_are_the_same_calls():  # else no plan would ever be followed
    with Runtime("sim:p100", attention="fused", policy="none") as runtime:
        (model, batch), _ = networks()
        counts = []
        for _ in range(3):
            with runtime.iteration():
                model(*batch).backward()
            counts.append(len(runtime.executor.signatures.by_key))
    assert counts[1] == counts[2]


# What it costs --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("causal", [False, True])
def test_its_cost_is_two_products_and_five_for_the_gradient_and_its_operands_once(causal):
    q, k, scores = meta((2, 30, 24), float32), meta((2, 50, 24), float32), meta((2, 3, 30), float32)
    k = q if causal else k
    attrs = {"heads": 3, "causal": causal, "p": 0.0, "seed": 0}
    product = 2 * 2 * 3 * 30 * k.shape[1] * 8 / (2 if causal else 1)  # 2 N heads L S D
    forward = ATTENTION.cost((q, k, k), (q, scores), attrs)
    backward = ATTENTION_GRAD.cost((q, q, k, k, q, scores), (q, k, k), attrs)
    assert (forward.flops, backward.flops) == (2 * product, 5 * product)
    assert forward.nbytes == 4 * (2 * q.size + 2 * k.size + scores.size)
    assert backward.nbytes == 4 * (4 * q.size + 4 * k.size + scores.size)
    assert ATTENTION.infer(*[meta((1, 2, 4), float64)] * 3, **attrs | {"heads": 1})[1].dtype is float64


def test_on_the_simulator_it_takes_less_time_and_less_memory_than_the_composition():
    def step(attention):
        with Runtime("sim:p100", attention=attention, policy="none") as runtime:
            model = bert.bert_base(vocabulary=100)
            batch = bert.synthetic_batch(runtime, 8, Text(length=512, predictions=5, vocabulary=100))
            with runtime.iteration():
                model(*batch).backward()
            before = runtime.stats()
            with runtime.iteration():
                model(*batch).backward()
            grown = runtime.stats().since(before)
            return grown.seconds, grown.peak_bytes
    (fused_s, fused_bytes), (composed_s, composed_bytes) = step("fused"), step("composed")
    assert fused_s < composed_s and fused_bytes < 0.6 * composed_bytes


# Managed --------------------------------------------------------------------------------------------------------------
@pytest.mark.default(policy=["auto"])
@pytest.mark.parametrize(("network", "policy"), [(0, "recompute"), (0, "auto"), (1, "passive")])
def test_memory_management_changes_no_bit_of_it(network, policy):
    """Dropout included: what is dropped is replayed with the same random numbers, or brought back."""
    def train(budget, policy):
        with Runtime("cpu:virtual", memory_budget=budget, host_memory="64MiB", policy=policy, attention="fused",
                     poisoned=True, seed=5) as runtime:
            model, batch = list(networks())[network]
            optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
            for _ in range(4):
                with runtime.iteration():
                    optimizer.zero_grad()
                    model(*batch).backward()
                    optimizer.step()
                runtime.check()
            stats = runtime.stats()
            return {name: array.tobytes() for name, array in model.state_dict().items()}, stats
    free, stats = train(BUDGET, "none")
    tight, stats = train(stats.peak_bytes * 3 // 4, policy)
    assert tight == free
    assert stats.swapped_out_bytes + stats.recomputed_bytes > 0
