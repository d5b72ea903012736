"""The runtime: the one object that a program makes."""

from minidl.runtime.runtime import Runtime, current_runtime, parameter

__all__ = ["Runtime", "current_runtime", "parameter"]
