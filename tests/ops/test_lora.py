"""Adapters: what they compute, what they train and save, and that merging them changes nothing but rounding."""

from functools import cache

import numpy as np
import pytest
from checked_steps import checked_steps
from networks import state_of

from minidl import Runtime, nn, no_grad
from minidl.errors import UserError
from minidl.models.bert import BertConfig, BertForPreTraining
from minidl.models.gpt import synthetic_batch
from minidl.models.llama import Llama, LlamaConfig
from minidl.models.text import Text
from minidl.nn import lora
from minidl.optim import AdamW
from train import main

SMALL = LlamaConfig(2, 32, 48, 4, 2, vocab_size=40, max_position_embeddings=24)
TEXT = Text(length=24, predictions=24, vocabulary=40)
ATTENTION = ("q_proj", "v_proj")


def runtime(**options):
    return Runtime("cpu:virtual", memory_budget="32MiB", poisoned=True, **options)


def trained(model, running, steps=3, lr=1e-2):
    """The losses of a few steps of the trained parameters."""
    optimizer, losses = AdamW([p for p in model.parameters() if p.requires_grad], lr=lr), []
    for _ in range(steps):
        with running.iteration():
            optimizer.zero_grad()
            value = model(*synthetic_batch(running, 3, TEXT))
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


def test_a_layer_adds_its_scaled_product_to_the_frozen_one():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    with runtime():
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        assert lora.add(model, 2, 6.0) == ["0"]
        layer = model[0]
        nn.init.normal_(layer.lora_B.weight)
        from minidl.runtime import current_runtime
        found = layer(current_runtime().tensor(x)).numpy()
        w, b, lower, upper = (t.numpy() for t in (layer.weight, layer.bias, layer.lora_A.weight, layer.lora_B.weight))
    assert lower.shape == (2, 6) and upper.shape == (5, 2)
    np.testing.assert_allclose(found, x @ w.T + b + 3.0 * (x @ lower.T @ upper.T), rtol=1e-5, atol=1e-6)


def test_before_training_adapters_change_no_bit_and_training_changes_them_alone():
    ids = np.arange(24)[None] % 40
    with runtime() as running:
        model = Llama(SMALL)
        with no_grad():
            plain = model.logits(running.tensor(ids)).numpy()
        before = model.state_dict()
        names = lora.add(model, 4)
        assert len(names) == 2 * 7 and "model.layers.1.mlp.down_proj" in names
        with no_grad():
            assert (model.logits(running.tensor(ids)).numpy() == plain).all()
        learning = [name for name, p in model.named_parameters() if p.requires_grad]
        assert learning == [f"{name}.lora_{part}.weight" for name in names for part in "AB"]
        losses = trained(model, running)
        after = model.state_dict()
    assert losses[-1] < losses[0]
    assert all((after[name] == value).all() for name, value in before.items())
    assert all(after[name].any() for name in learning)


def test_layers_are_chosen_by_the_ends_of_their_names():
    with runtime():
        model = Llama(SMALL)
        assert lora.add(model, 4, target_modules=ATTENTION) == [
            f"model.layers.{n}.self_attn.{name}" for n in (0, 1) for name in ATTENTION]
        assert set(lora.adapters(model)) == {f"model.layers.{n}.self_attn.{name}.lora_{part}.weight"
                                             for n in (0, 1) for name in ATTENTION for part in "AB"}


def test_adapters_of_a_model_in_inference_mode_drop_nothing():
    with runtime() as running:
        model = nn.Sequential(nn.Linear(4, 4)).eval()
        lora.add(model, 2, lora_dropout=0.9)
        nn.init.normal_(model[0].lora_B.weight)
        x = running.tensor(np.ones((3, 4), np.float32))
        assert (model(x).numpy() == model(x).numpy()).all() and not model[0].lora_dropout.training


def test_a_layer_of_two_parents_has_one_adapter():
    with runtime():
        shared = nn.Linear(4, 4)
        model = nn.Sequential(shared, nn.Sequential(shared))
        assert lora.add(model, 2) == ["0", "1.0"]
        assert model[0] is model[1][0] and len(lora.adapters(model)) == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_merged_model_computes_the_same(precision):
    ids = np.arange(24)[None] % 40
    with runtime(precision=precision) as running:
        model = Llama(SMALL)
        names = list(model.state_dict())
        lora.add(model, 4, 8.0)
        trained(model, running)
        with no_grad():
            apart = model.eval().logits(running.tensor(ids)).numpy().astype(np.float32)
            lora.merge(model)
            together = model.logits(running.tensor(ids)).numpy().astype(np.float32)
        assert list(model.state_dict()) == names and not any(p.requires_grad for p in model.parameters())
        assert not any(module.training for module in model.modules())
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    assert np.abs(apart - together).max() < tolerance * np.abs(apart).max()


def test_adapters_alone_are_saved_and_loaded():
    ids = np.arange(24)[None] % 40
    with runtime() as running:
        model, other = Llama(SMALL), Llama(SMALL)
        other.load_state_dict(model.state_dict())
        for one in (model, other):
            lora.add(one, 4, 8.0)
        trained(model, running)
        saved = lora.adapters(model)
        assert sum(a.size for a in saved.values()) < 0.5 * sum(p.numel() for p in model.parameters())
        with no_grad():
            wanted = model.logits(running.tensor(ids)).numpy()
            assert (other.logits(running.tensor(ids)).numpy() != wanted).any()
            lora.load(other, {lora.PEFT_PREFIX + name: array for name, array in saved.items()})
            assert (other.logits(running.tensor(ids)).numpy() == wanted).all()
        with pytest.raises(UserError, match=r"28 weights there, 27 given, .* model.layers.0.self_attn.q_proj.lora_A"):
            lora.load(other, dict(list(saved.items())[1:]))


def test_frozen_weights_in_half_precision_have_the_bits_of_their_casts():
    ids = np.arange(24)[None] % 40
    with runtime(precision="bf16") as running, no_grad():
        model = Llama(SMALL)
        plain = model.logits(running.tensor(ids)).numpy()
        lora.add(model, 4)
        assert (model.logits(running.tensor(ids)).numpy() == plain).all()
        kinds = {name: p.dtype.name for name, p in model.named_parameters()}
    assert kinds["model.embed_tokens.weight"] == kinds["model.layers.0.mlp.up_proj.weight"] == "bfloat16"
    assert kinds["model.layers.0.mlp.up_proj.lora_A.weight"] == kinds["model.norm.weight"] == "float32"


def test_a_network_of_another_kind_trains_its_adapters_too():
    from minidl.models import bert
    with runtime() as running:
        model = BertForPreTraining(BertConfig(1, 16, 2, vocab_size=40, max_position_embeddings=16))
        names = lora.add(model, 2, lora_dropout=0.1)
        with running.iteration():
            model(*bert.synthetic_batch(running, 2, Text(length=16, predictions=4, vocabulary=40))).backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad) and len(names) == 9


def test_bad_requests_change_nothing():
    with runtime():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        for arguments, message in (((0,), "rank of adapters must be at least 1, not 0"),
                                   ((2, None), "is called query or key")):
            targets = None if arguments == (0,) else ("query", "key")
            with pytest.raises(UserError, match=message):
                lora.add(model, *arguments, target_modules=targets)
        assert all(p.requires_grad for p in model.parameters())
        with pytest.raises(UserError, match="no adapters to merge"):
            lora.merge(model)
        lora.add(model, 2)
        with pytest.raises(UserError, match="has adapters already"):
            lora.add(model, 2)


def train(budget=None, policy="none", steps=4):
    with Runtime("cpu:virtual", memory_budget=budget or "64MiB", policy=policy, host_memory="64MiB",
                 poisoned=True, precision="bf16") as running:
        model = Llama(LlamaConfig(3, 32, 48, 4, 2, vocab_size=40))
        lora.add(model, 4, lora_dropout=0.1)
        optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        losses, needs = checked_steps(running, optimizer, lambda: model(*synthetic_batch(running, 6, TEXT)), steps)
        return state_of(running, model, optimizer, losses), needs, running.stats()


unlimited = cache(train)


@pytest.mark.default(percent=[50], policy=["passive", "recompute"])
@pytest.mark.parametrize("percent", [75, 50, 0])
@pytest.mark.parametrize("policy", ["passive", "recompute", "capuchin", "dtr-swap", "auto"])
def test_a_budget_changes_no_bit_of_adapters(policy, percent):
    reference, needs, _ = unlimited()
    budget = max(needs.largest_op_bytes, needs.unmanaged_peak_bytes * percent // 100)
    state, _, stats = train(budget, policy)
    assert [name for name in reference if state[name] != reference[name]] == []
    assert stats.swapped_out_bytes + stats.recomputed_bytes > 0


def test_a_command_trains_adapters_over_given_weights_and_writes_them_alone(tmp_path):
    from safetensors.numpy import load_file

    from minidl.models import create
    whole, saved = str(tmp_path / "whole.safetensors"), str(tmp_path / "adapters.safetensors")
    common = ["--model", "lenet", "--data", "digits", "--batch", "8", "--steps", "2", "--device", "cpu", "--quiet"]
    assert main([*common, "--save-weights", whole]) == 0
    assert main([*common, "--weights", whole, "--lora", "3", "--lora-targets", "F6,output", "--lr", "0.5",
                 "--save-weights", saved]) == 0
    state, found = load_file(whole), load_file(saved)
    assert set(found) == {f"{layer}.lora_{part}.weight" for layer in ("F6", "output") for part in "AB"}
    with runtime():
        model = create("lenet")
        model.load_state_dict(state)
        lora.add(model, 3, target_modules=("F6", "output"))
        lora.load(model, found)
        lora.merge(model)
        merged = model.state_dict()
    assert merged.keys() == state.keys()
    assert [name for name, value in merged.items() if (value != state[name]).any()] == ["F6.weight", "output.weight"]


def test_flags_of_adapters_need_adapters(capsys):
    assert main(["--model", "lenet", "--lora-alpha", "2"]) == 2
    assert "--lora-alpha is for adapters: give --lora RANK" in capsys.readouterr().err
    assert main(["--model", "lenet", "--device", "sim:p100", "--lora", "2", "--lora-targets", "q_proj"]) == 2
    assert "no linear layer to adapt is called q_proj" in capsys.readouterr().err


def test_with_enough_memory_nothing_is_computed_twice():
    assert train(1 << 26, "passive", steps=2)[2].recomputed_bytes == 0
