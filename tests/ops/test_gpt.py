"""GPT-2: what it sees, what it costs, and that memory management changes no bit of it."""

from functools import cache

import numpy as np
import pytest
from checked_steps import checked_steps
from tiny_gpt import TEXT, TINY

from minidl import Runtime, nn, no_grad
from minidl.errors import ShapeError
from minidl.models import create
from minidl.models.gpt import CONTEXT, GPT, GPTConfig, Inputs, generate, synthetic_batch
from minidl.models.text import Text
from minidl.optim import AdamW


def decays(parameter) -> bool:
    """Not the biases, not the norms."""
    return parameter.ndim > 1


def test_a_position_sees_itself_and_what_came_before():
    ids = np.arange(24)[None] % 7
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime, no_grad():
        model = GPT(TINY).eval()
        for block in model.transformer.h:  # at first it looks at everything alike, and hardly
            nn.init.normal_(block.attn.c_attn.weight, 0.0, 1.0)
        plain = model.logits(runtime.tensor(ids)).numpy()
        for at in (0, 11, 23):
            changed = ids.copy()
            changed[0, at] += 1
            other = model.logits(runtime.tensor(changed)).numpy()
            assert (other[:at] == plain[:at]).all()
            assert (other[at:] != plain[at:]).any(axis=1).all()


def test_what_is_generated_is_the_likeliest_token_of_what_the_model_reaches_back_to():
    config = GPTConfig(1, 16, 2, vocab_size=11, n_positions=6, dropout=0.0)
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime:
        model = GPT(config).eval()
        nn.init.normal_(model.transformer.wte.weight)
        ids = [[1, 2, 3], [4, 5, 6]]
        found = generate(model, runtime.tensor(ids), 5, top_k=1).tolist()
        for _ in range(5):
            with no_grad():
                seen = runtime.tensor([row[-6:] for row in ids])
                scores = model.logits(seen).numpy().reshape(*seen.shape, 11)
            ids = [[*row, int(best)] for row, best in zip(ids, scores[:, -1].argmax(-1), strict=True)]
        assert found == ids
        drawn = {tuple(generate(model, runtime.tensor([[1]]), 4, temperature=9.0).tolist()[0]) for _ in range(6)}
        assert len(drawn) > 1


def test_the_causal_mask_is_minus_infinity_above_the_diagonal():
    with Runtime("cpu:virtual", memory_budget="1MiB"):
        expected = [[0.0, -np.inf, -np.inf], [0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]]
        np.testing.assert_array_equal(nn.causal_mask(3).numpy(), expected)


def test_initial_weights_are_narrow_normals_and_narrower_where_they_end_in_the_residual_path():
    with Runtime("cpu:virtual", memory_budget="8MiB"):
        for name, array in GPT(TINY).state_dict().items():
            if array.ndim == 1:
                assert (array == name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight"))).all(), name
            else:  # five standard errors of a deviation: 5 / sqrt(2 * 768) = 13%
                std = 0.02 / 4**0.5 if "c_proj" in name else 0.02
                assert array.std() == pytest.approx(std, rel=0.13), name


def test_a_synthetic_batch_asks_for_the_next_token_and_is_the_same_for_the_same_seed():
    with Runtime("cpu:virtual", memory_budget="1MiB") as runtime:
        (ids, labels), (again, _), (other, _) = ([t.numpy() for t in synthetic_batch(runtime, 3, TEXT, seed=s)]
                                                 for s in (1, 1, 2))
    assert (ids[:, 1:] == labels[:, :-1]).all() and (ids == again).all() and (ids != other).any()
    with Runtime("sim:p100") as runtime:
        shaped = synthetic_batch(runtime, 3)
        assert [(t.shape, t.dtype.name) for t in shaped] == 2 * [((3, CONTEXT.length), "int64")]


def test_a_sequence_that_is_too_long_is_the_users_error():
    with Runtime("sim:p100") as runtime:
        model = create("gpt2")
        with pytest.raises(ShapeError, match="gpt has 1024 positions, but a sequence has 1025 tokens"):
            model(*synthetic_batch(runtime, 1, Text(1025, 1025, 50_257)))


def test_labels_that_are_not_to_count_do_not():
    ids, labels = np.arange(24)[None], np.full((1, 24), -100)
    labels[0, 3] = 5
    with Runtime("cpu:virtual", memory_budget="8MiB") as runtime, no_grad():
        model = GPT(TINY).eval()
        logits = model.logits(runtime.tensor(ids)).numpy().astype(np.float64)
        loss = model(*Inputs(runtime.tensor(ids), runtime.tensor(labels))).item()
    assert loss == pytest.approx(np.log(np.exp(logits[3]).sum()) - logits[3, 5], rel=1e-5)


def train(budget=None, policy="none", *, steps=2, lr=1e-3, dropout=0.1):
    """State of a tiny network after some steps, as bytes; the losses; the demand of a step; counters."""
    config = GPTConfig(3, 32, 4, vocab_size=40, n_positions=24, dropout=dropout)
    with Runtime("cpu:virtual", memory_budget=budget or "64MiB", policy=policy, host_memory="64MiB",
                 poisoned=True) as runtime:
        model = GPT(config)
        optimizer = AdamW(model.parameters(), lr=lr, weight_decay=0.1, decays=decays)
        losses, needs = checked_steps(runtime, optimizer, lambda: model(*synthetic_batch(runtime, 6, TEXT)), steps)
        stats = runtime.stats()
        arrays = model.state_dict() | optimizer.state_dict() | {f"gradient {name}": p.grad.numpy()
                                                                for name, p in model.named_parameters()}
        state = {name: array.tobytes() for name, array in arrays.items()} | {"losses": np.array(losses).tobytes()}
    return state, losses, needs, stats


unlimited = cache(train)


@pytest.mark.slow
def test_a_few_steps_learn_a_batch_by_heart():
    _, losses, _, _ = train(steps=25, lr=1e-2, dropout=0.0)
    assert losses[0] == pytest.approx(np.log(40), rel=0.05)  # knows nothing: all words are equally likely
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.default(percent=[50], policy=["passive"])
@pytest.mark.parametrize("percent", [50, 0])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_a_budget_changes_no_bit_of_gpt(policy, percent):
    reference, _, needs, _ = unlimited()
    budget = max(needs.largest_op_bytes, needs.unmanaged_peak_bytes * percent // 100)
    state, _, _, stats = train(budget, policy)
    assert [name for name in reference if state[name] != reference[name]] == []
    assert (stats.swapped_out_bytes if policy == "passive" else stats.recomputed_bytes) > 0
