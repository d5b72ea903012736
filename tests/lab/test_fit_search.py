"""The search of ``minidl fit`` for the largest batch: networks whose calls depend on the batch, and what never fits."""

import pytest

from minidl.lab import cell
from minidl.lab.cell import Machine
from minidl.lab.fitting import ProgramAtBatch
from minidl.lab.training_step import Setting, trace_of

TINY = Setting(64)


def tiny(batch):
    return trace_of("llama-tiny", batch, setting=TINY)


def asked_of(batch):
    asked = []
    return ProgramAtBatch("llama-tiny", lambda n: asked.append(n) or tiny(n), batch, interpolates=False), asked


@pytest.mark.parametrize("policy", ["none", "passive"])
def test_a_network_whose_calls_depend_on_the_batch_is_traced_at_each_that_is_tried(policy):
    """The loss has a chunk for each 128 rows, so a batch of 64 has more calls than one of 4."""
    assert len(tiny(64).calls) > len(tiny(4).calls)
    machine, budget = Machine("p100"), 16 << 20
    program, _ = asked_of(4)
    batch, row, status = program.fitted(machine, policy, budget, steps=2)
    assert status == row.status == "ok" and batch > 4
    assert program.row(machine, policy, budget, batch + 1, 2).status.startswith("no room")


def test_nothing_is_tried_where_parameters_and_states_alone_need_more_than_device_and_host(monkeypatch):
    """487,000 bytes of parameters, twice that of states: more than 1 MiB of both."""
    program, asked = asked_of(1)
    monkeypatch.delattr(cell, "run")
    batch, row, status = program.fitted(Machine("p100", host_bytes=1 << 19), "passive", 1 << 19, steps=2)
    assert (batch, row, asked) == (0, None, [1, 2])
    assert status == ("nothing fits: parameters 489.2 KiB, gradients 489.2 KiB and optimizer state 978.5 KiB do not "
                      "fit 512.0 KiB of the device and 512.0 KiB of the host")


def test_the_search_tries_no_batch_beyond_one_whose_operands_need_the_budget():
    """Of a batch of 1 an update has the largest operands; the largest activations are found all the same: they take
    2 MiB for 8 texts of 256 tokens."""
    tried = []

    def load(batch):
        tried.append(batch)
        assert batch < 100
        return trace_of("llama-tiny", batch, setting=Setting(256))

    program = ProgramAtBatch("llama-tiny", load, 1, interpolates=False)
    batch, row, status = program.fitted(Machine("p100"), "passive", 8 << 20, steps=2)
    assert status == "ok" and max(tried) <= 2 * batch + 2


def test_a_loss_has_no_more_than_256_chunks():
    """32,768 rows, and 49,152: of 128 rows each chunk, and of 192."""
    assert len(tiny(512).calls) == len(tiny(768).calls)


def test_a_batch_that_ends_a_longer_run_is_not_the_answer(monkeypatch):
    """At first two iterations run; then more are asked for, and only smaller batches have room."""
    program, _ = asked_of(4)
    own = ProgramAtBatch.row

    def row(self, machine, policy, budget, batch, steps):
        assert steps == 3
        return own(self, machine, policy, budget if batch <= 8 else 1 << 20, batch, steps)

    monkeypatch.setattr(ProgramAtBatch, "row", row)
    monkeypatch.setattr(ProgramAtBatch, "largest", lambda *_, steps=2, most=9, **__: min(most, 9))
    batch, found, status = program.fitted(Machine("p100"), "passive", 16 << 20, steps=3)
    assert (batch, status) == (8, "ok") and found.steps
