"""Mixed precision: what is bfloat16 and what is not, that it changes no bit under pressure, and what it is worth."""

import json
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from networks import Outcome, differences, train
from tiny_gpt import TEXT as GPT_TEXT
from tiny_gpt import TINY as GPT_TINY

import minidl
from minidl import device as devices
from minidl import models, nn, ops
from minidl.data import Batch
from minidl.device import profiles
from minidl.device.cost_model import algorithms, kernel_seconds
from minidl.device.precision import PRECISIONS
from minidl.errors import ShapeError, UserError
from minidl.memory.switches import Switches
from minidl.meta import DTYPES, bfloat16, float16, float32, float64, meta, wide
from minidl.models.bert import BertConfig, BertForPreTraining
from minidl.models.gpt import GPT
from minidl.models.text import Text
from minidl.op import Op
from minidl.ops.shape import CAST, CAST_GRAD
from minidl.optim import SGD
from train import main

NETS = ("mlp", "vgg", "resnet", "branching")


# Names ------------------------------------------------------------------------------------------------------------
def test_a_precision_that_does_not_exist_is_refused_with_those_that_do(capsys):
    for make in (lambda: minidl.Runtime("sim:p100", precision="bf8"), lambda: devices.create("cpu", precision="bf8")):
        with pytest.raises(UserError, match=r"^no precision 'bf8'; known: fp32, tf32, bf16$"):
            make()
    assert main(["--precision", "b16"]) == 2
    assert "--precision: no precision 'b16'; known: fp32, tf32, bf16" in capsys.readouterr().err


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_on_the_cpu_fp32_and_tf32_are_the_same_bits(network):
    assert differences(plain(network, "fp32"), plain(network, "tf32")) == []


# Bits and values --------------------------------------------------------------------------------------------------
@cache
def plain(network: str, precision: str, steps: int = 3) -> Outcome:
    return train(network, steps=steps, precision=precision)


@pytest.mark.parametrize(("network", "policy"), [
    ("vgg", "passive"), ("resnet", "passive"), ("resnet", "recompute"), ("resnet", "capuchin"),
    ("branching", "passive"), ("branching", "recompute")])
def test_a_budget_changes_no_bit_of_a_bf16_training(network, policy):
    reference = plain(network, "bf16")
    demand = reference.demand
    budget = max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * 6 // 10)
    outcome = train(network, steps=3, precision="bf16", policy=policy, memory_budget=budget)
    assert differences(outcome, reference) == []
    assert outcome.stats.swapped_out_bytes + outcome.stats.recomputed_bytes > 0


@pytest.mark.parametrize("network", NETS)
def test_losses_are_within_a_few_percent_of_those_of_fp32(network):
    wanted, losses = plain(network, "tf32", 5).losses, plain(network, "bf16", 5).losses
    # A rounding is off by at most 2^-8 of a value, and a step of these networks changes the loss by less than half.
    assert losses == pytest.approx(wanted, rel=0.03) and losses != wanted


@dataclass(frozen=True)
class TextCase:
    make: type[nn.Module]
    config: object
    batch: object
    text: Text


TEXTS = {"bert": TextCase(BertForPreTraining, BertConfig(2, 32, 4, vocab_size=50, max_position_embeddings=16),
                          models.bert.synthetic_batch, Text(length=16, predictions=4, vocabulary=50)),
         "gpt": TextCase(GPT, GPT_TINY, models.gpt.synthetic_batch, GPT_TEXT)}


def train_text(name: str, **options) -> tuple[dict[str, bytes], list[float], int]:
    case, losses = TEXTS[name], []
    options = {"policy": "none", "memory_budget": 1 << 26, "host_memory": 1 << 26} | options
    with minidl.Runtime("cpu:virtual", poisoned=True, **options) as runtime:
        model = case.make(case.config)
        optimizer = SGD(list(model.parameters()), lr=0.05, momentum=0.9)
        for step in range(3):
            with runtime.iteration():
                optimizer.zero_grad()
                loss = model(*case.batch(runtime, 12, case.text, seed=step))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                assert loss.dtype is float32
                del loss
        assert all(p.dtype is float32 and p.grad.dtype is float32 for p in model.parameters())
        peak = runtime.stats().peak_bytes
        return {k: v.tobytes() for k, v in {**model.state_dict(), **optimizer.state_dict()}.items()}, losses, peak


@pytest.mark.parametrize("name", TEXTS)
def test_transformers_train_in_bf16_and_a_budget_changes_no_bit(name):
    state, losses, peak = train_text(name, precision="bf16")
    _, wanted, fp32_peak = train_text(name)
    assert losses == pytest.approx(wanted, rel=0.03) and losses != wanted and peak < 0.75 * fp32_peak
    managed = train_text(name, precision="bf16", policy="passive", memory_budget=int(0.7 * peak))
    assert managed[:2] == (state, losses)


# What is bfloat16 ---------------------------------------------------------------------------------------------------
FAMILIES = ("mlp", "lenet", "vgg16_bn", "resnet50", "inception_v3_aux", "inception_v4", "densenet121", "unet",
            "bert-tiny", "gpt2")
# Calls that make, or take, masters: parameters' gradients, and what is found for each row or channel.
OF_MASTERS = {"cast_grad", "embedding_grad", "narrow_grad", "add"}
PER_ROW = {"layer_norm", "batch_norm_stats"}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_in_every_model_all_that_grows_with_the_batch_is_bf16(name, fused):
    """Found by running it on shapes at two batches: a float32 result of a call must be of the same size in both, but
    for the statistics of a row, and for the mask of a text, which is uploaded in float32 and lowered once."""
    def results(batch):
        found = []
        with minidl.Runtime("sim:a100", memory_budget=1 << 50, policy="none", precision="bf16",
                            switches=Switches(fused=fused)) as runtime:
            model, known = models.create(name), models.find(name)
            optimizer = SGD(list(model.parameters()), lr=0.1, momentum=0.9)
            runtime.executor.inspect = lambda op, inputs, outputs: found.append((op, [s.meta for s in outputs]))
            with runtime.iteration():
                if known.text:
                    text = Text(32, 8 if known.reads_pairs else 32, known.text.vocabulary)
                    loss = model(*known.text_batch(runtime, batch, text))
                else:
                    pixels = known.input_shape[1:] if known.pixel_labels else ()
                    loss = known.loss(model, *Batch(batch, known.input_shape, label_shape=pixels).upload(runtime))
                loss.backward()
                optimizer.step()
            assert loss.dtype is float32
            assert all(p.dtype is p.grad.dtype is float32 for p in model.parameters())
            assert all(b.dtype is float32 for _, b in model.named_buffers())
        return found
    few, many = results(2), results(4)
    assert [op for op, _ in few] == [op for op, _ in many]
    halves = 0
    for (op, small), (_, large) in zip(few, many, strict=True):
        for i, (a, b) in enumerate(zip(small, large, strict=True)):
            grows = b.size > a.size and b.dtype.floating
            halves += grows and b.dtype is bfloat16
            of_mask = name.startswith("bert") and b.shape == (4, 32) and op in ("upload", "shift", "scale")
            assert not grows or b.dtype is bfloat16 or (op == "layer_norm" and i) or of_mask, (op, b)
    assert halves > len(few) / 4


def peak_of(precision: str, batch: int) -> int:
    """Bytes that a step of ResNet-50 has in use at once, unmanaged."""
    with minidl.Runtime("sim:p100", memory_budget=1 << 50, policy="none", precision=precision) as runtime:
        model = models.create("resnet50")
        optimizer = SGD(list(model.parameters()), lr=0.1, momentum=0.9)
        for _ in range(2):
            with runtime.iteration():
                optimizer.zero_grad()
                loss = models.find("resnet50").loss(model, *Batch(batch, (3, 224, 224)).upload(runtime))
                loss.backward()
                del loss
                optimizer.step()
        return runtime.stats().peak_bytes


def test_activations_take_half_of_the_bytes():
    full, half = ([peak_of(precision, batch) for batch in (64, 128)] for precision in ("fp32", "bf16"))
    # Of an image that is more: all that a parameter needs is the same for both batches. Max-pool's positions, a byte
    # each in either precision, are 1% of the activations.
    assert 0.5 < (half[1] - half[0]) / (full[1] - full[0]) < 0.51
    assert half[1] < 0.54 * full[1]


def test_the_gradient_of_a_confident_prediction_is_not_rounded_away():
    logits = np.array([[9.0, 0.0, 0.0]], np.float32)  # the label's probability, 0.99975, is 1 in bfloat16
    with minidl.Runtime("cpu:virtual", memory_budget="1MiB") as runtime:
        x = runtime.tensor(logits, dtype=bfloat16)
        x.requires_grad = True
        ops.cross_entropy(x, runtime.tensor(np.array([0]))).backward()
        found = x.grad.numpy().astype(np.float64)
    right = np.exp(logits) / np.exp(logits).sum() - [[1, 0, 0]]
    np.testing.assert_allclose(found, right, rtol=2.0**-8)


# The master copies --------------------------------------------------------------------------------------------------
def test_a_state_is_float32_and_loads_across_precisions():
    states = {}
    for precision in PRECISIONS:
        with minidl.Runtime("cpu:virtual", memory_budget="8MiB", precision=precision) as runtime:
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNormReLU2d(4), nn.Flatten(), nn.Linear(16, 2))
            x = runtime.tensor(np.ones((2, 3, 4, 4), np.float32))
            model(x)
            states[precision] = model.state_dict()
            assert {a.dtype for a in states[precision].values()} == {np.dtype(np.float32)}
            for other in states.values():
                model.load_state_dict(other)
                assert all((a == b).all() for a, b in zip(model.state_dict().values(), other.values(), strict=True))


def test_the_gradient_of_a_cast_comes_back_in_the_dtype_of_its_input_and_nothing_is_lost():
    values = np.arange(-4, 4, dtype=np.float32) / 4
    with minidl.Runtime("cpu:virtual", memory_budget="1MiB", poisoned=True) as runtime:
        w, factor = runtime.tensor(values), runtime.tensor(values[::-1].copy(), dtype=bfloat16)
        w.requires_grad = True
        y = w.cast(bfloat16) * factor
        assert y.dtype is bfloat16 and w.cast(float32) is w
        y.backward(runtime.tensor(np.ones(8), dtype=bfloat16))
        assert w.grad.dtype is float32 and (w.grad.numpy() == values[::-1]).all()


def test_a_lowered_weight_is_made_again_from_its_master_copy():
    with minidl.Runtime("sim:p100", memory_budget="1GiB", policy="none", precision="bf16") as runtime:
        layer = nn.Linear(64, 64)
        names = []
        runtime.executor.inspect = lambda op, inputs, outputs: names.append(op)
        layer(runtime.tensor(None, shape=(8, 64)))
    assert names.count("cast") == 2 and CAST.replayable and CAST.vjp is not None and CAST_GRAD.long_lived


# What operations take -------------------------------------------------------------------------------------------------
def of(dtype, *shapes):
    return [meta(shape, dtype) for shape in shapes]


@pytest.mark.parametrize("half", [bfloat16, float16])
def test_what_stands_beside_a_half_is_float32_and_anything_else_is_refused(half):
    x, image = meta((4, 8), half), meta((2, 8, 3, 3), half)
    vectors, wrong = of(float32, *[(8,)] * 4), of(half, *[(8,)] * 4)
    assert [m.dtype for m in ops.batchnorm.BATCH_NORM_STATS.infer(image)] == [float32] * 2
    assert [m.dtype for m in ops.layernorm.LAYER_NORM.infer(x, *vectors[:2], eps=1.0)] == [half, float32, float32]
    loss, residual = ops.loss.CROSS_ENTROPY.infer(x, meta((4,), DTYPES["int64"]))
    assert (loss.dtype, residual.dtype) == (float32, half)
    assert ops.linear.BIAS_GRAD.infer(image, axis=1).dtype is float32
    norm = {"eps": 1.0, "training": True}
    window = {"stride": (1, 1), "padding": (0, 0)}
    refused: list[tuple[Op, list, dict]] = [
        (ops.batchnorm.BATCH_NORM, [image, *wrong], norm), (ops.batchnorm.BATCH_NORM_RELU, [image, *wrong], norm),
        (ops.batchnorm.BATCH_NORM_ADD_RELU, [image, image, *wrong], norm),
        (ops.layernorm.LAYER_NORM, [x, *wrong[:2]], {"eps": 1.0}),
        (ops.linear.LINEAR, [x, meta((8, 8), float32)], {}),
        (ops.linear.LINEAR, [x, meta((8, 8), half), wrong[0]], {}),
        (ops.linear.MATMUL, [x, meta((8, 8), float32)], {"transpose_a": False, "transpose_b": False}),
        (ops.conv.CONV2D, [image, meta((8, 8, 1, 1), float32)], window),
        (ops.conv.CONV2D, [image, meta((8, 8, 1, 1), half), wrong[0]], window),
        (ops.conv.CONV2D_DGRAD, [image, meta((8, 8, 1, 1), float32)], {"x_shape": (2, 8, 3, 3), **window}),
        (CAST, [meta((4,), DTYPES["int64"])], {"dtype": float32})]
    for op, inputs, attrs in refused:
        with pytest.raises(ShapeError):
            op.infer(*inputs, **attrs)


def test_what_is_wide_is_float32_for_halves_alone():
    assert [wide(d) for d in (bfloat16, float16, float32, float64)] == [float32, float32, float32, float64]


def test_parameters_of_float64_stay_what_they_are():
    with minidl.Runtime("cpu:virtual", memory_budget="1MiB", precision="bf16"):
        w = minidl.parameter((3, 2), dtype=float64)
        assert nn.lowered(w) is w


# Time on a simulator --------------------------------------------------------------------------------------------------
def seconds_of(name: str, dtype) -> float:
    """A product on the GPU of this name."""
    inputs, output = of(dtype, (4096, 4096), (4096, 4096)), meta((4096, 4096), dtype)
    cost = ops.linear.LINEAR.cost(inputs, [output], {})
    return algorithms(profiles.get(name), "linear", inputs, [output], {}, cost)[0].seconds


def test_products_of_bf16_have_the_rate_of_tensor_cores_where_a_gpu_has_it():
    # 2 * 4096^3 operations on an H100: 494 against 989 TFLOP/s; on a P100 there is one rate for all.
    assert seconds_of("h100", bfloat16) == pytest.approx(seconds_of("h100", float32) / 2, rel=0.05)
    assert seconds_of("p100", bfloat16) == seconds_of("p100", float32)
    profile, w = profiles.get("a100"), meta((256, 256, 1, 1), bfloat16)
    x = meta((64, 256, 28, 28), bfloat16)
    cost = ops.conv.CONV2D.cost([x, w], [x], {})
    found = algorithms(profile, "conv2d", [x, w], [x], {"stride": (1, 1), "padding": (0, 0)}, cost)[0].seconds
    assert found < kernel_seconds(profile, "conv", cost.flops, cost.nbytes)


def test_exact_products_are_slower_on_a_simulated_gpu_that_has_tf32_and_the_same_on_one_that_has_not():
    def peak(name, precision):
        return devices.create(name, precision=precision).profile.tensor_flops
    assert peak("sim:a100", "fp32") == 19.5e12 < peak("sim:a100", "tf32") == 156e12
    assert peak("sim:p100", "fp32") == peak("sim:p100", "tf32")


# train.py -----------------------------------------------------------------------------------------------------------
DIGITS = ["--model", "lenet", "--data", "digits", "--device", "cpu", "--batch", "150", "--memory-budget", "8MiB"]


def test_train_py_trains_in_bf16_and_says_so_and_goes_on_from_a_checkpoint(tmp_path, capsys):
    run = [*DIGITS, "--precision", "bf16", "--checkpoint-every", "3"]
    assert main([*run, "--steps", "6", "--save-weights", str(tmp_path / "whole.safetensors"), "--json",
                 str(tmp_path / "json"), "--run-dir", str(tmp_path / "a")]) == 0
    assert json.loads((tmp_path / "json").read_text())["precision"] == "bf16"
    assert "bf16, budget 8.0 MiB" in capsys.readouterr().out
    assert main([*run, "--steps", "3", "--run-dir", str(tmp_path / "b")]) == 0
    assert main(["--resume", str(tmp_path / "b"), "--steps", "6", "--save-weights", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["--resume", str(tmp_path / "b"), "--steps", "7", "--precision", "fp32"]) == 2
    assert "was made with --precision bf16" in capsys.readouterr().err
    assert main([*DIGITS, "--steps", "1", "--weights", str(tmp_path / "whole.safetensors")]) == 0


def test_the_largest_batch_is_twice_that_of_float32(tmp_path):
    found = {}
    for precision in ("tf32", "bf16"):
        assert main(["--model", "resnet50", "--device", "sim:p100", "--batch", "max", "--policy", "none",
                     "--steps", "2", "--precision", precision, "--json", str(tmp_path / precision)]) == 0
        result = json.loads((tmp_path / precision).read_text())
        found[precision] = result["batch"]
        assert result["unmanaged_peak_bytes"] == pytest.approx(result["peak_bytes"], rel=0.02)
    assert found == {"tf32": 191, "bf16": 381}  # the table in docs/train.md
