"""The bench of host time: its guided rows follow a plan."""

from bench.host_time import Case, measure


def test_under_a_plan_bytes_are_swapped_and_resident_none_are():
    """A device whose own time stood still would have every plan look slow, and none would be followed."""
    guided = measure(Case("vgg16", 8, "cuda", "guided"), 1)
    assert guided.swapped_bytes > 0 and guided.operations > guided.views
    resident = measure(Case("vgg16", 8, "cuda", "passive"), 1)
    assert not resident.swapped_bytes and resident.operations == guided.operations
