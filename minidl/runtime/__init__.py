"""``Runtime``: the object that a program makes to use minidl. It joins a device, a memory budget and a policy."""

from minidl.runtime.runtime import Runtime, current_runtime, parameter

__all__ = ["Runtime", "current_runtime", "parameter"]
