"""Random whole programs give the unmanaged bits under every policy, in every budget from the floor up.

150 by default, each under one setting; 2,000 among the slow tests, each under three; a hundred thousand by
``python -m tests.campaigns.programs``.
"""

import random
from dataclasses import replace

import pytest
from program_machine import Wrong
from program_ops import KINDS
from program_runs import check, compare, managed, reference, settings, shrink
from whole_programs import Step, program

from minidl.errors import Unrecoverable
from minidl.memory.writing import WriteGuard
from tests.campaigns.programs import run

FEW, RUN, BLOCK = 300, 150, 50
ALL = 100_000


@pytest.mark.parametrize("first", range(0, RUN, BLOCK))
def test_random_programs_have_the_unmanaged_bits(first, one_thread):
    for seed in range(first, first + BLOCK):
        check(program(seed), 1)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1000])
def test_random_programs_have_the_unmanaged_bits_under_several_settings(first, one_thread):
    assert run(1000, seed=first, settings=3).failed == 0


@pytest.mark.full
def test_a_hundred_thousand_programs(capsys):
    with capsys.disabled():
        assert run(ALL).failed == 0


@pytest.mark.slow
def test_random_programs_have_the_numbers_of_pytorch():
    pytest.importorskip("torch")
    assert run(200, seed=ALL, peer=True).failed == 0


def test_programs_contain_what_users_write():
    """Every operation, and every verb; batches that change, steps left out, several optimizers."""
    programs = [program(seed) for seed in range(FEW)]
    kinds = {step.kind for of in programs for step in of.steps}
    assert kinds == set(KINDS) | {"leaf", "ids", "delete", "read", "keep", "branch", "add_", "copy_", "fill_",
                                  "gradient", "zero", "clip", "step", "backward", "fail", "require", "bad", "other",
                                  "again", "seed"}
    assert any(of.constants for of in programs) and any(of.views for of in programs)
    assert any(0 in of.batches for of in programs) and any(dict(step.attrs).get("retain") for of in programs
                                                           for step in of.steps)
    assert any(len(set(of.batches)) > 1 for of in programs) and any(len(of.optimizers) > 1 for of in programs)
    assert any(step.skipped for of in programs for step in of.steps)


def test_a_program_follows_from_its_seed_and_a_step_without_operands_is_skipped():
    assert program(5) == program(5) != program(6)
    of = program(5)
    for step in of.steps:  # whatever is left out, a program is left
        reference(replace(of, batches=of.batches[:1], steps=tuple(other for other in of.steps if other is not step)))


def test_a_failing_program_is_shrunk_to_what_fails():
    of = next(of for of in map(program, range(100)) if any(step.kind == "softmax" for step in of.steps))
    least = shrink(of, lambda less: any(step.kind == "softmax" for step in less.steps))
    assert [step.kind for step in least.steps] == ["softmax"] and len(least.batches) == 1
    assert isinstance(least.steps[0], Step) and "softmax(" in str(least)


def test_a_wrong_bit_is_seen(monkeypatch):
    """An engine that forgets to compute anew what a write forces."""
    monkeypatch.setattr(WriteGuard, "before_write", lambda self, targets, inputs: None)
    with pytest.raises((AssertionError, Unrecoverable)):
        for seed in range(60):
            of = program(seed)
            need = reference(of)
            for how in settings(need, random.Random(seed), 2):
                managed(of, need, how)
    with pytest.raises(Wrong, match="1 values instead of 2"):
        compare(["a", "b"], ["a"])
