"""The default policy: keep, swap or drop for every gap between two accesses, by search on the simulated iteration."""

from minidl.policies.auto.policy import Auto

__all__ = ["Auto"]
