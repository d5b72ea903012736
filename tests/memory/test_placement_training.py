"""Bit for bit under every placement: where blocks go costs memory and time, and no result."""

from functools import cache

import pytest
from networks import Outcome, differences, train

from minidl.errors import OutOfMemory, UserError
from minidl.meta import ALIGNMENT
from minidl.placements import PLACEMENTS, Place, Placement
from minidl.placements.caching import Caching
from minidl.placements.first_fit import FirstFit
from minidl.runtime import Runtime

STEPS = 3


class Generous(FirstFit):
    """A placement of one's own that compacts, and gives every block a unit more than it needs where there is room."""

    name = "generous"

    def place(self, nbytes, holes, *, high):
        lowest = min(holes)
        return Place(lowest.offset, min(nbytes + ALIGNMENT, lowest.size))


MAKES = {**PLACEMENTS, "generous": Generous}
OTHERS = [name for name in MAKES if name != "best-fit"]  # that one is what all other tests train with
TRAINED = [("vgg", "passive"), ("vgg", "auto"), ("branching", "recompute"), ("branching", "auto")]


@cache
def unlimited(network: str) -> Outcome:
    return train(network, steps=STEPS)


def budget_of(network: str, percent: int) -> int:
    demand = unlimited(network).demand
    return max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * percent // 100)


@pytest.mark.default(policy=["auto"], network=["branching"])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(("network", "policy"), TRAINED)
def test_a_placement_changes_no_bit_or_says_that_free_memory_is_fragmented(network, name, policy):
    trained = []
    for percent in (100, 60):
        placement = MAKES[name]()
        try:
            outcome = train(network, steps=STEPS, policy=policy, placement=placement,
                            memory_budget=budget_of(network, percent))
        except OutOfMemory as error:
            assert not placement.compacts, error
            assert "; fragmentation: the largest free block has " in str(error) and "nothing may be moved" in str(error)
        else:
            assert differences(outcome, unlimited(network)) == []
            assert outcome.stats.moved_bytes == 0 or placement.compacts
            trained.append(percent)
    assert trained == [100, 60] if placement.compacts else 100 in trained


@pytest.mark.parametrize("placement", ["first-fit", "bfc", Caching(unit=256)], ids=["first-fit", "bfc", "caching"])
def test_every_invariant_holds_after_every_call_whatever_the_placement(placement):
    outcome = train("vgg", steps=2, policy="passive", placement=placement, memory_budget=budget_of("vgg", 75),
                    checked=True)
    assert outcome.stats.swapped_out_bytes > 0
    assert outcome.losses == unlimited("vgg").losses[:2]


def test_what_fits_with_compaction_may_be_fragmented_without_it():
    budget = budget_of("vgg", 0)  # what its largest operation needs, and nothing to spare
    assert differences(train("vgg", steps=STEPS, policy="passive", memory_budget=budget), unlimited("vgg")) == []
    with pytest.raises(OutOfMemory, match="; fragmentation: the largest free block has .*, the blocks in use are "
                                          ".* larger than needed, and nothing may be moved"):
        train("vgg", steps=STEPS, policy="passive", placement="bfc", memory_budget=budget)


def test_a_runtime_says_which_placement_it_has_and_takes_one_of_its_users_own():
    own = Caching(unit=1024)
    assert Runtime("sim:p100", placement=own, memory_budget="1MiB").placement is own
    made = Runtime("sim:p100", placement="bfc", memory_budget="1MiB").placement
    assert isinstance(made, Placement) and made.name == "bfc"
    assert Runtime("sim:p100", memory_budget="1MiB").placement.name == "best-fit"
    with pytest.raises(UserError, match="there is no placement 'worst'"):
        Runtime("sim:p100", placement="worst")
