"""The optimum for small traces, by mixed-integer programming, as a yardstick for other policies."""

from minidl.policies.literature.exact.policy import Exact

__all__ = ["Exact"]
