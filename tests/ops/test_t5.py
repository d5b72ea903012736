"""T5: what the halves see, texts that continue, generation, and that memory management changes no bit of its training.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from checked_steps import checked_steps
from networks import state_of

from minidl import Runtime, no_grad
from minidl.errors import ShapeError
from minidl.models.gpt import synthetic_batch
from minidl.models.t5 import T5, T5Config, buckets, generate
from minidl.models.text import Text
from minidl.optim import AdamW
from minidl.policies.auto import policy as auto

SMALL = T5Config(2, 32, 48, 4, 12, vocab_size=40)
TEXT = Text(length=24, predictions=24, vocabulary=40)
POLICIES = ("passive", "recompute", "capuchin", "dtr-swap", "auto")
BUDGETS = (75, 50, 0)  # percent of the unmanaged peak; 0: the largest operation


def test_near_positions_have_buckets_of_their_own_and_far_ones_share_theirs():
    after = buckets(200, both_sides=False)
    assert [int(b) for b in after[:18, 0]] == [*range(16), 16, 16]  # 16 of 32 for one distance each
    assert after[199, 0] == after[128, 0] == 31 and not np.triu(after).any()
    sides = buckets(200, both_sides=True)
    assert (sides[0, 1:] == sides[1:, 0] + 16).all() and sides[199, 0] == 15 and sides[3, 3] == 0


def test_a_position_of_the_decoder_sees_what_came_before_and_all_of_the_encoders_tokens_but_padding():
    ids, read = np.arange(20)[None] % 7, np.arange(10)[None] % 5
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime, no_grad():
        model = T5(SMALL).eval()
        seen = np.ones((1, 10), np.float32)
        seen[0, 7:] = 0

        def logits(read, ids):
            return model.logits(*map(runtime.tensor, (read, ids, seen))).numpy()
        plain = logits(read, ids)
        for at in (0, 11, 19):
            other = logits(read, ids + (np.arange(20) == at))
            assert (other[:at] == plain[:at]).all() and (other[at:] != plain[at:]).any(axis=1).all()
        for at in range(10):
            other = logits(read + (np.arange(10) == at), ids)
            assert (other != plain).any(axis=1).all() if at < 7 else (other == plain).all()


def test_running_text_is_read_up_to_its_half_and_predicted_from_there():
    tokens = np.random.default_rng(0).integers(1, 40, size=(2, 11))
    with Runtime("cpu:virtual", memory_budget="8MiB") as runtime, no_grad():
        model = T5(SMALL).eval()
        whole = model(runtime.tensor(tokens[:, :-1]), runtime.tensor(tokens[:, 1:])).item()
        parts = model.loss(runtime.tensor(tokens[:, :5]), runtime.tensor(tokens[:, 5:])).item()
        with pytest.raises(ShapeError, match="at least 2 tokens, one to read, not 1"):
            model(runtime.tensor(tokens[:, :1]), runtime.tensor(tokens[:, :1]))
    assert whole == parts


def test_a_generated_text_takes_the_likeliest_token_each_time():
    with Runtime("cpu:virtual", memory_budget="8MiB", poisoned=True) as runtime:
        model, read = T5(replace(SMALL, tie_word_embeddings=False)).eval(), runtime.tensor(np.arange(14).reshape(2, 7))
        made = generate(model, read, 5).numpy()
        with no_grad():
            before = np.concatenate([np.zeros((2, 1), np.int64), made[:, :-1]], 1)
            likeliest = model.logits(read, runtime.tensor(before)).numpy().argmax(1)
    assert made.shape == (2, 5) and len({*made[0]}) > 2 and (made.ravel() == likeliest).all()


def train(budget=None, policy="none", *, device="cpu:virtual", steps=4):
    """State of a small network after some steps, as bytes; the losses; the demand of a step; counters."""
    with Runtime(device, memory_budget=budget or "64MiB", policy=policy, host_memory="64MiB",
                 poisoned=device == "cpu:virtual") as runtime:
        model = T5(T5Config(2, 32, 48, 4, 12, vocab_size=40, gated=True))
        optimizer = AdamW(model.parameters(), lr=3e-3)
        losses, needs = checked_steps(runtime, optimizer, lambda: model(*synthetic_batch(runtime, 6, TEXT)), steps)
        return state_of(runtime, model, optimizer, losses), losses, needs, runtime.stats()


unlimited = cache(train)


@pytest.mark.default(percent=[50], policy=["recompute"], device=["cpu:virtual"])
@pytest.mark.sampled(device=["cpu:virtual"])
@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
@pytest.mark.parametrize("percent", BUDGETS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_changes_no_bit_of_t5(monkeypatch, policy, percent, device):
    monkeypatch.setattr(auto, "FIRST_WORK", 2e5)
    reference, losses, needs, _ = unlimited(device=device)
    budget = max(needs.largest_op_bytes, needs.unmanaged_peak_bytes * percent // 100)
    state, _, _, stats = train(budget, policy, device=device)
    assert [name for name in reference if state[name] != reference[name]] == []
    assert stats.swapped_out_bytes + stats.recomputed_bytes > 0
    assert losses[-1] < losses[0]
