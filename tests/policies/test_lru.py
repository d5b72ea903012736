"""``lru``: one decision worked out by hand."""

from minidl.plan.costs import Costs
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import Pressure, Residency
from minidl.policies import create


def resident(tensor_id: int, *, idle: int, nbytes: int = 1, host_valid: bool = False) -> Residency:
    return Residency(tensor_id, nbytes, 0, 0, 0, False, host_valid, 1e-9, idle)


def test_what_was_used_longest_ago_is_swapped_first_whatever_its_size_and_equals_go_in_order_of_their_ids():
    # Unused for 2, 7, 0, 7 and 3 calls: 11 and 13 tie at 7, then 14, 10, and 12, which the last call used.
    tensors = [resident(10, idle=2), resident(13, idle=7, host_valid=True), resident(12, idle=0),
               resident(11, idle=7, nbytes=99), resident(14, idle=3)]
    found = create("lru").victims(tensors, Pressure(99, 100, 100, Costs(1.0, 1.0, 0.0)))
    assert found == [Eviction(t, Action.SWAP_OUT) for t in (11, 13, 14, 10, 12)]
