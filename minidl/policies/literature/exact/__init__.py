"""The optimum for small traces, by mixed-integer programming: what the other policies are measured with."""

from minidl.policies.literature.exact.policy import Exact

__all__ = ["Exact"]
