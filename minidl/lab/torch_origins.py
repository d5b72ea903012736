"""Finds, for each tensor of a PyTorch program, the module and the line that made it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from minidl.lab.torch_seen import Seen
from minidl.lab.torch_watch import CallWatch
from minidl.plan.trace import TensorId, Trace

# Not the program: PyTorch itself, and the modes and hooks of this package.
NOT_THE_PROGRAM = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent}/", "<")


@dataclass(frozen=True)
class Origin:
    """module: the path of a module, such as ``layer1.0.conv1``, or the name of a parameter; "" if unknown.
    line: file and line of the program, like ``networks.py:31``; "" if unknown. state: True if it is an optimizer's."""

    module: str = ""
    line: str = ""
    state: bool = False


class Place(NamedTuple):
    """Where a program is: ``id`` of the innermost module whose forward pass runs (0: none), and a line.
    backward: True if it is the place of the call whose gradient is being computed."""

    module: int
    line: str
    backward: bool = False


class Origins:
    """Tells where a program is (``place``), and afterwards which module and line made each tensor (``of``)."""

    def __init__(self, seen: Seen, within: Callable[..., Any]) -> None:
        """seen: the collector of the program's modules, which knows those that are running.
        within: the function that runs the program; its own frame and its callers' are not the program's."""
        self._seen, self._within = seen, within.__code__
        self._here = f"{Path.cwd()}/"
        self._forward: dict[int, Place] = {}  # by the number that autograd gives a call of the forward pass
        self._last = Place(0, "")

    def place(self) -> Place:
        """Return the running module, and the innermost line outside of PyTorch and of this package.
        In the backward pass both are those of the call whose gradient is being computed."""
        node: Any = torch._C._current_autograd_node()
        if node is not None and not self._seen.running:
            self._last = self._forward.get(node._sequence_nr(), self._last)
            return self._last._replace(backward=True)
        found = Place(id(self._seen.running[-1]) if self._seen.running else 0, self._line())
        self._forward[torch._C._autograd._get_sequence_nr() - 1] = found
        return found

    def _line(self) -> str:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._within:
            if not frame.f_code.co_filename.startswith(NOT_THE_PROGRAM):
                return f"{self._short(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _short(self, file: str) -> str:
        """Return a path from the current folder, or from the folder of installed packages, else its last two parts."""
        if file.startswith(self._here):
            return file.removeprefix(self._here)
        _, installed, inner = file.rpartition("site-packages/")
        return inner if installed else "/".join(Path(file).parts[-2:])

    def of(self, trace: Trace, watch: CallWatch) -> dict[TensorId, Origin]:
        """Return tensor -> origin; the origin of a tensor from before the step is its name.
        trace: has the calls of ``watch``, in the same order."""
        paths = self._seen.paths()
        found = {i: Origin(name, state=state) for name, tensor, state in self._seen.named()
                 if (i := watch.known(tensor)) is not None}
        for call, place in zip(trace.calls, watch.places, strict=True):
            found.update(dict.fromkeys(call.outputs, Origin(paths.get(place.module, ""), place.line)))
        return found
