"""A large parameter's states are in parts, each updated by a call of its own: the bits of the whole, in less memory."""

import numpy as np
import pytest

from minidl import Runtime, nn, optim
from minidl.errors import OutOfMemory
from minidl.meta import int64
from minidl.optim import optimizer as optimizer_module

ROWS, WIDTH = 67, 128  # 33.5 KiB, which no number of parts divides


def train(make, *, policy="none", budget="16MiB", host="1MiB", steps=3, state=None):
    """Values, and the optimizer's state, of a table after a few steps; and the most that was in use."""
    with Runtime("cpu", memory_budget=budget, host_memory=host, policy=policy, seed=5, poisoned=True) as runtime:
        table = nn.Embedding(ROWS, WIDTH)
        bias = nn.Linear(WIDTH, 3)
        optimizer = make([*table.parameters(), *bias.parameters()])
        if state is not None:
            optimizer.load_state_dict(state)
        for step in range(steps):
            with runtime.iteration():
                ids = runtime.tensor((np.arange(12) * (step + 1)) % ROWS)
                optimizer.zero_grad()
                (bias(table(ids)) ** 2.0).sum().backward()
                optimizer.step()
                runtime.check()
        return table.weight.numpy(), optimizer.state_dict(), runtime.stats().peak_bytes, optimizer.named_states()


MAKERS = {"momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
          "sgd": lambda p: optim.SGD(p, 0.1),
          "adamw": lambda p: optim.AdamW(p, lr=0.01), "adadelta": lambda p: optim.Adadelta(p)}


@pytest.mark.parametrize("name", MAKERS)
def test_parts_have_the_bits_of_the_whole(name, monkeypatch):
    value, state, _, names = train(MAKERS[name])
    monkeypatch.setattr(optimizer_module, "PART_BYTES", 8192)  # five parts of 13 or 14 rows
    parted, in_parts, _, names_of_parts = train(MAKERS[name])
    assert parted.tobytes() == value.tobytes() and in_parts.keys() == state.keys()
    for key, array in state.items():
        assert in_parts[key].tobytes() == array.tobytes() and in_parts[key].shape == array.shape
    if state:
        assert len(names_of_parts) == len(names) + 4 * len(optim_states(names))
        assert {n.rsplit(".", 1)[1] for n in names_of_parts.keys() - names.keys()} == {"0", "13", "26", "40", "53"}
        again = train(MAKERS[name], steps=0, state=state)[1]
        assert all(again[key].tobytes() == array.tobytes() for key, array in state.items())


def optim_states(names):
    """What an optimizer keeps of each parameter."""
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("policy", ["passive", "auto", "dtr-swap"])
def test_an_update_that_has_no_room_whole_runs_in_parts(policy, monkeypatch):
    """Parameter, gradient and two states are 134 KiB; in parts 67 and twice 7."""
    value = train(MAKERS["adamw"])[0]
    with pytest.raises(OutOfMemory, match="adam_"):
        train(MAKERS["adamw"], policy=policy, budget=96 << 10)
    monkeypatch.setattr(optimizer_module, "PART_BYTES", 8192)
    parted, _, peak, _ = train(MAKERS["adamw"], policy=policy, budget=96 << 10)
    assert parted.tobytes() == value.tobytes() and peak <= 96 << 10


@pytest.mark.parametrize("policy", ["passive", "auto"])
def test_an_embedding_whose_update_is_larger_than_a_p100_trains_on_it(policy):
    """250,000 x 4,096: 3.8 GiB, and four times that for AdamW, of 14.8."""
    with Runtime("sim:p100", policy=policy) as runtime:
        table = nn.Embedding(250_000, 4096)
        optimizer = optim.AdamW(table.parameters())
        for _ in range(4):
            with runtime.iteration():
                ids = runtime.tensor(None, shape=(8, 512), dtype=int64)
                optimizer.zero_grad()
                table(ids).sum().backward()
                optimizer.step()
        assert 4 * 250_000 * 4096 * 4 > runtime.stats().budget_bytes >= runtime.stats().peak_bytes
