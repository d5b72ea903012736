"""A dispatch mode at the bottom of PyTorch's stack, so that modes that a program enters and leaves keep their order."""

import sys
from typing import Any

from torch.utils import _python_dispatch as modes

# False in older versions of PyTorch, where compiled code runs uncompiled under any mode.
BESIDE_COMPILED = hasattr(modes.TorchDispatchMode, "ignore_compile_internals")


class Beneath(modes.TorchDispatchMode):
    """A dispatch mode that is below all others between ``enter`` and ``leave``."""

    _placed = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: code of ``torch.compile`` runs compiled under this mode, which does not see the calls in it.
        Otherwise it would run uncompiled, with other bits."""
        return True

    def enter(self) -> None:
        """Put this mode at the bottom of PyTorch's stack of dispatch modes, unless it is there already."""
        if not self._placed:
            above = lifted()
            self.__enter__()
            put_back(above)
            self._placed = True

    def leave(self) -> None:
        """Remove this mode from PyTorch's stack of dispatch modes, wherever in the stack it is."""
        if not self._placed:
            return
        self._placed = False
        stack = modes._get_current_dispatch_mode_stack()
        if not any(mode is self for mode in stack):
            return  # another thread's stack, or the program has removed the mode
        above = lifted(until=self)
        self.__exit__(None, None, None)
        put_back(above)


def lifted(until: Any = None) -> list[Any]:
    """Take all dispatch modes above ``until`` (None: all modes) off the stack; return them, the topmost last."""
    above: list[Any] = []
    stack = modes._get_current_dispatch_mode_stack()
    for mode in reversed([m for m in stack if getattr(m, "_mode_key", None) is None]):
        if mode is until:
            break
        above.insert(0, modes._pop_mode())
    return above


def put_back(above: list[Any]) -> None:
    """Put the dispatch modes that ``lifted`` has returned back on PyTorch's stack, in their old order."""
    for mode in above:
        modes._push_mode(mode)


def compiled() -> bool:
    """True if ``torch.compile`` has compiled code in this process."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    return compiler is not None and bool(getattr(compiler, "FRAME_COUNTER", 1))


def recordable() -> bool:
    """True if a recorded step has the bits of any other: no compiled code, or a PyTorch that runs it under modes."""
    return BESIDE_COMPILED or not compiled()
