"""The fastest possible plan of a small trace, by mixed-integer programming: a yardstick for other policies."""

from minidl.policies.literature.exact.policy import Exact

__all__ = ["Exact"]
