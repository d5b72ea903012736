"""Llama: what a position sees, what its rotations are, and that memory management changes no bit of its training."""

from functools import cache

import numpy as np
import pytest
from checked_steps import checked_steps
from networks import state_of

from minidl import Runtime, no_grad
from minidl.errors import ShapeError, UserError
from minidl.models.gpt import Inputs, synthetic_batch
from minidl.models.llama import Cache, Llama, LlamaConfig, RopeScaling, Rotation, generate
from minidl.models.text import Text
from minidl.optim import AdamW
from minidl.policies.auto import policy as auto

SMALL = LlamaConfig(2, 32, 48, 4, 2, vocab_size=40, tie_word_embeddings=True, max_position_embeddings=24)
TEXT = Text(length=24, predictions=24, vocabulary=40)
POLICIES = ("passive", "recompute", "capuchin", "dtr-swap", "auto")
BUDGETS = (75, 50, 0)  # percent of the unmanaged peak; 0: the largest operation


def test_a_position_sees_itself_and_what_came_before():
    ids = np.arange(24)[None] % 7
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime, no_grad():
        model = Llama(SMALL)
        for parameter in model.parameters():
            parameter.mul_(10.0)  # at first it looks at everything alike, and hardly
        plain = model.logits(runtime.tensor(ids)).numpy()
        for at in (0, 11, 23):
            changed = ids.copy()
            changed[0, at] += 1
            other = model.logits(runtime.tensor(changed)).numpy()
            assert (other[:at] == plain[:at]).all()
            assert (other[at:] != plain[at:]).any(axis=1).all()


def test_a_product_of_rotated_heads_depends_on_the_distance_of_their_positions_alone():
    config = LlamaConfig(1, 32, 48, 2, 2, rope_scaling=RopeScaling(4.0, original_max_position_embeddings=32))
    rng = np.random.default_rng(0)
    q, k = (np.broadcast_to(rng.standard_normal(32), (1, 24, 32)).astype(np.float32) for _ in range(2))
    with Runtime("cpu:virtual", memory_budget="8MiB") as runtime:
        turned = [Rotation(config, 0, 24)(runtime.tensor(x)).numpy()[0].reshape(24, 2, 16) for x in (q, k)]
        later = Rotation(config, 5, 19)(runtime.tensor(q[:, 5:])).numpy()
    np.testing.assert_array_equal(later[0].reshape(19, 2, 16), turned[0][5:])
    products = np.einsum("ihd,jhd->hij", *turned)
    for distance in range(-23, 24):
        diagonal = np.diagonal(products, distance, 1, 2)
        np.testing.assert_allclose(diagonal, np.broadcast_to(diagonal[:, :1], diagonal.shape), atol=1e-5)
    assert np.ptp(products[:, 0], axis=1).min() > 0.1


def test_a_scaling_stretches_slow_rotations_alone():
    plain = LlamaConfig(1, 128, 48, 1, 1).frequencies()
    stretched = LlamaConfig(1, 128, 48, 1, 1, rope_scaling=RopeScaling(8.0)).frequencies()
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_allclose(stretched[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(stretched[turns < 1], plain[turns < 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any() and ((stretched < plain) & (stretched > plain / 8))[between].all()


def test_sizes_that_do_not_fit_are_the_users_error():
    with pytest.raises(UserError, match="4 heads of queries are not a multiple of 3"):
        LlamaConfig(1, 32, 48, 4, 3)
    with pytest.raises(UserError, match="even width of a head, not 7"):
        LlamaConfig(1, 28, 48, 4, 2)
    with Runtime("sim:p100") as runtime:
        model = Llama(SMALL)
        with pytest.raises(ShapeError, match="llama has 24 positions, but a sequence has 25 tokens"):
            model(*synthetic_batch(runtime, 1, Text(25, 25, 40)))


def test_labels_that_are_not_to_count_do_not():
    ids, labels = np.arange(24)[None], np.full((1, 24), -100)
    labels[0, 3] = 5
    with Runtime("cpu:virtual", memory_budget="8MiB") as runtime, no_grad():
        model = Llama(SMALL)
        logits = model.logits(runtime.tensor(ids)).numpy().astype(np.float64)
        loss = model(*Inputs(runtime.tensor(ids), runtime.tensor(labels))).item()
    assert loss == pytest.approx(np.log(np.exp(logits[3]).sum()) - logits[3, 5], rel=1e-5)


def train(budget=None, policy="none", *, device="cpu:virtual", steps=5, lr=1e-3):
    """State of a small network after some steps, as bytes; the losses; the demand of a step; counters."""
    with Runtime(device, memory_budget=budget or "64MiB", policy=policy, host_memory="64MiB",
                 poisoned=device == "cpu:virtual") as runtime:
        model = Llama(LlamaConfig(3, 32, 48, 4, 2, vocab_size=40, rope_scaling=RopeScaling(8.0)))
        optimizer = AdamW(model.parameters(), lr=lr)
        losses, needs = checked_steps(runtime, optimizer, lambda: model(*synthetic_batch(runtime, 6, TEXT)), steps)
        return state_of(runtime, model, optimizer, losses), losses, needs, runtime.stats()


unlimited = cache(train)


@pytest.mark.slow
def test_a_few_steps_learn_a_batch_by_heart():
    _, losses, _, _ = train(steps=25, lr=1e-2)
    assert losses[0] == pytest.approx(np.log(40), rel=0.05)  # knows nothing: all words are equally likely
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.default(percent=[50], policy=["passive", "recompute"], device=["cpu"])
@pytest.mark.sampled(device=["cpu:virtual"])
@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
@pytest.mark.parametrize("percent", BUDGETS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_changes_no_bit_of_llama(monkeypatch, policy, percent, device):
    monkeypatch.setattr(auto, "FIRST_WORK", 2e5)
    reference, _, needs, _ = unlimited(device=device)
    budget = max(needs.largest_op_bytes, needs.unmanaged_peak_bytes * percent // 100)
    state, _, _, stats = train(budget, policy, device=device)
    assert [name for name in reference if state[name] != reference[name]] == []
    assert stats.swapped_out_bytes + stats.recomputed_bytes > 0


# Generation ---------------------------------------------------------------------------------------------------------
LONG = LlamaConfig(2, 32, 48, 4, 2, vocab_size=40, max_position_embeddings=48, rope_scaling=RopeScaling(8.0))


def lively(config=LONG):
    """A model whose attention and scores differ by position."""
    model = Llama(config).eval()
    with no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    return model


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "seed": 3}, {"temperature": 2.0, "seed": 3, "top_k": 5}],
                         ids=["greedy", "drawn", "of-five"])
def test_generation_with_a_cache_is_that_without(options):
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime:
        model, start = lively(), runtime.tensor(np.arange(10).reshape(2, 5))
        with_cache, without = (generate(model, start, 30, use_cache=use, **options).tolist() for use in (True, False))
    assert with_cache == without and [len(row) for row in with_cache] == [35, 35]
    assert [row[:5] for row in with_cache] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert len({*with_cache[0][5:]}) > 3


def test_cached_scores_are_those_of_the_whole_sequence():
    ids = np.random.default_rng(0).integers(40, size=(2, 20))
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime, no_grad():
        model, cache = lively(), Cache()
        whole = model.model(runtime.tensor(ids)).numpy()
        found = [model.model(runtime.tensor(ids[:, :12]), cache).numpy()]
        found += [model.model(runtime.tensor(ids[:, n:n + 1]), cache).numpy() for n in range(12, 20)]
        with pytest.raises(ShapeError, match="one token after 20 cached ones, not 2"):
            model.model(runtime.tensor(ids[:, :2]), cache)
    np.testing.assert_allclose(np.concatenate(found, 1), whole, rtol=1e-4, atol=1e-4)


def test_the_likeliest_token_comes_without_temperature_and_draws_follow_from_the_seed_alone():
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime:
        model, start = lively(), runtime.tensor([[7, 8, 9]])
        with no_grad():
            likeliest = model.logits(start).numpy()[-1].argmax()
        assert generate(model, start, 1).tolist() == [[7, 8, 9, likeliest]]
        drawn = {seed: generate(model, start, 6, temperature=5.0, seed=seed).tolist() for seed in (1, 2)}
        counted = dict(runtime.counters)
        assert generate(model, start, 6, temperature=5.0, seed=1).tolist() == drawn[1] != drawn[2]
        assert runtime.seed == 0 and runtime.counters["seeds"] == counted["seeds"]
        assert generate(model, start, 6, temperature=50.0, top_k=1).tolist() == generate(model, start, 6).tolist()
        with pytest.raises(ShapeError, match="48 positions, too few for 3 tokens and 46 more"):
            generate(model, start, 46)
        with pytest.raises(UserError, match="temperature must be at least 0 and top_k at least 1, not -1"):
            generate(model, start, 1, temperature=-1.0)


@pytest.mark.default(policy=["passive"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_changes_no_token_that_is_generated(policy):
    found = []
    for chosen, budget in (("none", "8MiB"), (policy, "48KiB")):
        with Runtime("cpu:virtual", memory_budget=budget, policy=chosen, host_memory="8MiB", poisoned=True) as runtime:
            found.append(generate(lively(), runtime.tensor([[7, 8, 9]]), 12, temperature=2.0, seed=1).tolist())
    assert found[0] == found[1]
    assert runtime.stats().swapped_out_bytes + runtime.stats().recomputed_bytes > 0
