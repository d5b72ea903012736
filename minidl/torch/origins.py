"""Finds where in the program a call comes from: the module whose forward pass runs, and the line of source.

A call of a backward pass has the origin of the call whose gradient it computes: autograd numbers its nodes.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as hooks

from minidl.torch.beneath import compiled

PASSED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))  # folders whose lines are skipped
MOST_FRAMES = 100


class Origin(NamedTuple):
    """The place that a call comes from: a module's dotted name, and ``file.py:12``. backward: it is a gradient's."""

    layer: str
    line: str
    backward: bool = False

    def __str__(self) -> str:
        return ", ".join(filter(None, self[:2]))


NOWHERE = Origin("", "")


class Origins:
    """Finds the origin of each call between ``enter`` and ``leave``, by hooks around the modules' forward passes."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._of: dict[int, Origin] = {}  # by the sequence number of the autograd node
        self._handles: list[Any] = []

    def enter(self) -> None:
        """Forget the last step's calls, and begin to observe the modules' forward passes."""
        self._stack, self._of = [], {}
        if not self._handles and not compiled():  # hooks on modules would make the code of modules compile again
            self._handles = [hooks.register_module_forward_pre_hook(self._into),
                             hooks.register_module_forward_hook(self._out_of, always_call=True)]

    def leave(self) -> None:
        """Stop observing modules: remove the hooks around their forward passes."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._names = [], {}

    def now(self) -> Origin:
        """Return the origin of the call that runs now; to be called from a dispatch mode."""
        node = torch._C._current_autograd_node()
        if node is not None:
            known = self._of.get(node._sequence_nr())
            return Origin(known.layer, known.line, True) if known is not None else Origin("", self._line(), True)
        origin = Origin(self._stack[-1] if self._stack else "", self._line())
        self._of.setdefault(torch._C._autograd._get_sequence_nr() - 1, origin)
        return origin

    def _into(self, module: torch.nn.Module, inputs: Any) -> None:
        if id(module) not in self._names:  # the outermost module, or one that is registered in no other
            top = self._stack[-1] + "." if self._stack else ""
            for name, inner in module.named_modules():
                named = name or type(module).__name__ if not top else top + (name or type(module).__name__)
                self._names.setdefault(id(inner), named)
        self._stack.append(self._names[id(module)])

    def _out_of(self, module: torch.nn.Module, inputs: Any, result: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _line(self) -> str:
        frame: Any = sys._getframe(1)
        for _ in range(MOST_FRAMES):
            if frame is None:
                return ""
            name = frame.f_code.co_filename
            if not name.startswith(PASSED) and not name.startswith("<"):
                return f"{Path(name).name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""
