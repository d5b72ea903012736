"""Random programs compute the same bits under ``minidl.torch``, whatever leaves in whichever way."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_mutants import MUTANTS  # noqa: E402

from tests.campaigns.torch_programs import main, runs  # noqa: E402

PART, PARTS, CAMPAIGN = 50, 10, 5000  # programs; the campaign's command runs more


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_compute_the_same_bits(part):
    found = list(runs(range(part * PART, (part + 1) * PART)))
    assert [str(run) for run in found if not run.same] == []
    assert sum(run.replayed > 0 for run in found) > PART * 2 // 3  # of twice as many runs with drops


@pytest.mark.full
def test_a_campaign_of_random_programs_computes_the_same_bits():
    assert [str(run) for run in runs(range(PART * PARTS, PART * PARTS + CAMPAIGN)) if not run.same] == []


@pytest.mark.default(mutant=["replays draw new random numbers", "offsets are lost"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_random_programs_find_a_mistake_that_is_planted(mutant, capsys):
    assert main(["--mutant", mutant, "--count", "200"]) == 0, capsys.readouterr().out


def test_the_campaign_says_how_many_programs_it_has_run(capsys):
    assert main(["--count", "3", "--seed", "7"]) == 0
    assert "3 programs from seed 7 on, 0 runs that differ" in capsys.readouterr().out
    assert main(["--count", "2", "--minutes", "0"]) == 0
    assert "1 programs from seed 0 on" in capsys.readouterr().out
