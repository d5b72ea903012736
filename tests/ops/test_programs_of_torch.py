"""Programs written for PyTorch train with minidl, with nothing changed but imports: under a budget with the bits of an
unmanaged run, and beside PyTorch within float32's errors."""

import numpy as np
import pytest
from either import main_of

import minidl
from minidl import Runtime, nn, optim
from minidl.nn import functional as F
from minidl.parts.slicing.slicer import slicer_of


def digits(steps=4, batch=6):
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((batch, 1, 12, 12)).astype(np.float32), rng.integers(0, 10, batch))
            for _ in range(steps)]


def characters(steps=5, batch=3, length=8):
    rng = np.random.default_rng(1)
    made = []
    for _ in range(steps):
        tokens = (rng.integers(0, 11, (batch, 1)) + np.arange(length + 1)) % 11
        targets = tokens[:, 1:].copy()
        targets[0, :3] = -1  # not counted
        made.append((tokens[:, :-1], targets))
    return made


PROGRAMS = {"digits_program": (digits, {"rate": 0.0}), "characters_program": (characters, {})}
UNTRAINED = {"digits_program": {"epochs": 0}, "characters_program": {}}  # beside no batches


def run(name, start=None, *, budget="64MiB", policy="none", **options):
    batches, usual = PROGRAMS[name]
    with Runtime("cpu", memory_budget=budget, policy=policy, host_memory="64MiB", seed=5, poisoned=True) as runtime:
        result = main_of(name, "minidl")(start, batches(), **{**usual, **options})
        runtime.check()
        return (*result, runtime.stats())


@pytest.mark.default(policy=["passive"])
@pytest.mark.parametrize("policy", ["passive", "auto", "recompute"])
@pytest.mark.parametrize(("name", "share", "options"), [  # the workspace of a convolution is half of what is there
    ("digits_program", 0.8, {"rate": 0.25}), ("characters_program", 0.6, {"top_k": 3})])
def test_a_program_has_the_same_bits_in_a_part_of_its_memory(name, share, options, policy):
    *plain, free = run(name, **options)
    *managed, tight = run(name, budget=int(share * free.peak_bytes), policy=policy, **options)
    assert plain[:2] == managed[:2]
    assert all(plain[2][key].tobytes() == managed[2][key].tobytes() for key in plain[2])
    assert free.swapped_out_bytes + free.recomputed_bytes == 0 < tight.swapped_out_bytes + tight.recomputed_bytes


@pytest.mark.parametrize(("name", "options"), [("digits_program", {}), ("characters_program", {}),
                                               ("characters_program", {"fused": True})])
def test_a_program_agrees_with_pytorch_within_float32s_errors(name, options):
    pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    batches, usual = PROGRAMS[name]
    options = {**usual, **options}
    theirs = main_of(name, "torch")
    untrained = theirs(None, [], **{**options, **UNTRAINED[name]})[2]
    start = {key: value.copy() for key, value in untrained.items()}
    losses, scores, right = theirs(start, batches(), **options)
    ours, our_scores, found, _ = run(name, start, **options)
    np.testing.assert_allclose(ours, losses, rtol=2e-5)
    assert found.keys() == right.keys()
    for key in right:
        np.testing.assert_allclose(found[key], right[key], rtol=1e-4, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(our_scores, scores, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_in_slices_and_joins_nothing(name):
    batches, options = PROGRAMS[name]
    found = []
    for slices in (1, 3):
        with Runtime("cpu", memory_budget="64MiB", policy="none", seed=5, slices=slices, poisoned=True) as runtime:
            found.append(main_of(name, "minidl")(None, batches(), **options))
            assert slices == 1 or not slicer_of(runtime.executor).joined
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)


def recurrent_losses(budget, policy="none", slices=1):
    with Runtime("cpu:virtual", memory_budget=budget, policy=policy, seed=3, slices=slices, poisoned=True) as runtime:
        lstm, gru, norm = nn.LSTM(4, 6, 2, bidirectional=True), nn.GRU(12, 5, batch_first=True), nn.GroupNorm(2, 8)
        parameters = [p for module in (lstm, gru, norm) for p in module.parameters()]
        optimizer = optim.Adadelta(parameters, lr=0.5)
        x = np.random.default_rng(0).standard_normal((6, 8, 4)).astype("f4")
        losses = []
        for _ in range(3):
            y = gru(lstm(minidl.tensor(x).transpose(0, 1))[0].transpose(0, 1))[0]
            loss = F.mse_loss(norm(F.silu(y).transpose(1, 2)[:, :1].expand(-1, 8, -1)), minidl.zeros(6, 8, 8))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        runtime.check()
        return losses, [p.numpy().tobytes() for p in parameters], runtime.stats()


def test_a_recurrent_network_has_the_same_bits_in_half_of_its_memory():
    *plain, free = recurrent_losses("8MiB")
    *managed, tight = recurrent_losses(free.peak_bytes // 2, "dtr-swap")
    assert plain == managed and tight.swapped_out_bytes + tight.recomputed_bytes > 0
    np.testing.assert_allclose(recurrent_losses("8MiB", slices=2)[0], plain[0], rtol=1e-5)
