"""The default policy: it decides keep, swap or drop for every gap, by a search that simulates the iteration."""

from minidl.policies.auto.policy import Auto

__all__ = ["Auto"]
