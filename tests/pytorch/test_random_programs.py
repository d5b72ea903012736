"""Random programs compute the same bits under ``minidl.torch``, whatever leaves in whichever way."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import forced, same  # noqa: E402
from torch_random import drawn, outcome  # noqa: E402

BY_DEFAULT, CAMPAIGN = 100, 5000  # programs


def differing(seeds):
    found, moved = [], 0
    for seed in seeds:
        expected = outcome(seed)
        for how in ("swap", "mixed", "drop"):
            memory = forced(how)
            seen = outcome(seed, memory)
            moved += memory.report().replayed_calls > 0
            alike = seen == expected if isinstance(seen, str) or isinstance(expected, str) else same(expected, seen)
            if not alike:
                found.append((seed, how, [name for name, _, _ in drawn(seed)], seen if isinstance(seen, str) else ""))
    return found, moved


def test_random_programs_compute_the_same_bits():
    found, moved = differing(range(BY_DEFAULT))
    assert found == []
    assert moved > BY_DEFAULT  # of twice as many runs with drops


@pytest.mark.full
def test_a_campaign_of_random_programs_computes_the_same_bits():
    assert differing(range(BY_DEFAULT, BY_DEFAULT + CAMPAIGN))[0] == []
