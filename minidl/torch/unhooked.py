"""Runs steps without saved-tensor hooks: once several equal steps have moved nothing, the hooks are removed.

Even a hook that does nothing would slow down a small step too much. So the hooks are removed if four equal steps in a
row have evicted nothing and the budget is at least twice their peak, and every call of a module is compared with the
known step: the number of autograd's nodes so far, and the shape of the module's input. At the first difference the
hooks come back. If the step may not keep everything, they are given to the tensors that were saved without them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from threading import get_ident
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook

from minidl.torch.beneath import compiled
from minidl.torch.course import Course, Phase
from minidl.torch.known import Called, Known
from minidl.torch.saved import Saved
from minidl.torch.there import all_of, kinds

TRUSTED = 4      # equal steps in a row before the hooks come off
ROOM = 2.0       # the budget, as a multiple of the step's peak: a step that grows between two modules is seen late
LEAST_CALLS = 4  # at most this part (1 in 4) of the packs is between two calls of modules

_nodes: Callable[[], int] = torch._C._autograd._get_sequence_nr  # in this thread so far
_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def seen_anyway(number: int) -> bool:
    """True if the step with this number, from 1, keeps the hooks, to see if its shapes are still the known ones."""
    return not number & (number - 1)


class Unhooked:
    """Runs steps that evict nothing without minidl's saved-tensor hooks, and brings the hooks back when a step differs.

    In a step without hooks it compares each call of a module with that call in an earlier step with hooks, from which
    it has learned the calls.

    on     True: minidl's hooks are on PyTorch's stack of saved-tensor hooks.
    bare   True: the current step has begun without these hooks.
    never  True: all steps of this program keep the hooks.
    """

    def __init__(self, saved: Saved, course: Course, budget: int) -> None:
        self.saved, self.course, self.budget = saved, course, budget
        self.on = self.bare = self.never = False
        self._hooks = saved_tensors_hooks(saved.pack, saved.unpack)
        self._beneath: Any = None  # the hooks that were at the top of the stack without ours
        self._handle: Any = None
        self._learning = False
        self._partly = False  # True: this step has saved tensors without hooks, and has them back now
        self._learned: list[tuple[Called, int]] = []  # with the number of packs before the call
        self._ahead: Iterator[Called] = iter(())
        self._first = self._thread = 0

    # On PyTorch's stack of hooks ------------------------------------------------------------------------------------
    def start(self) -> None:
        """Register minidl's saved-tensor hooks with autograd, in this thread."""
        self._thread, self.on = get_ident(), True
        self._hooks.__enter__()

    def stop(self) -> None:
        """Remove minidl's saved-tensor hooks, until ``start`` registers them again."""
        self._watch(on=False)
        self.bare = self._learning = False
        if self.on:
            self._hooks.__exit__()
        self.on = False

    def _take_off(self) -> None:
        top = _top(True)
        if top is None or top[0] != self.saved.pack:
            return  # the program has put hooks of its own above, which must come off first
        self._hooks.__exit__()
        self.on, self._beneath = False, _top(True)

    def _put_back(self) -> None:
        if not self.on and _top(True) == self._beneath:
            self._hooks.__enter__()
            self.on = True

    # Steps -----------------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Begin a step, with the hooks or without them. The phase of the step has been chosen before."""
        known = self.course.expected if self.course.phase is Phase.GUIDED else None
        may = known is not None and known.trusted >= TRUSTED - 1 and self._may(known) and (
            not seen_anyway(self.course.steps + 1))
        calls = known.calls if may and known is not None else ()
        self.bare, self._partly, self._learning, self._learned = False, False, calls is None, []
        if calls:
            if self.on:
                self._take_off()
            self.bare = not self.on
        if not self.bare:
            self._put_back()
        self._first, self._ahead = _nodes(), iter(calls if self.bare and calls else ())
        self._watch(on=self.bare or self._learning or not self.on)

    def _may(self, known: Known) -> bool:
        obeyed = known.obeyed
        return not (self.never or _top is None or not LEGIBLE or compiled()) and (
            obeyed is not None and not obeyed.decisions and ROOM * obeyed.peak_bytes <= self.budget)

    @property
    def idle(self) -> bool:
        """True if this step has begun without hooks and no call in it needs gradients yet: autograd made no node."""
        return self.bare and _nodes() == self._first

    def end(self) -> None:
        """End a step: learn its calls of modules, or compare its end with the step that was expected."""
        known, last = self.course.expected, (_nodes() - self._first, None)
        if self.course.phase is not Phase.GUIDED or known is None:
            return
        if self.bare:
            self.saved.packs = len(known.packs)
            if next(self._ahead, None) != last:
                self.course.astray()
        elif self._learning:
            calls, packs = zip(*self._learned, (last, self.saved.packs), strict=True)
            between = [after - before for before, after in zip((0, *packs), packs, strict=False)]
            known.calls = calls if max(between) * LEAST_CALLS <= packs[-1] else ()

    # Calls of modules ------------------------------------------------------------------------------------------------
    def _watch(self, *, on: bool) -> None:
        if on and self._handle is None:
            self._handle = register_module_forward_pre_hook(self._called())
        elif not on and self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self) -> Callable[[Any, Any], None]:
        """Return the hook that runs before each module's forward pass, and compares the call with the expected one."""
        here, ident, nodes_now, saves = self._thread, get_ident, _nodes, torch.is_grad_enabled

        def called(module: torch.nn.Module, args: Any) -> None:
            if ident() != here or not saves():
                return
            try:
                shape = args[0].shape
            except Exception:  # no arguments, or none with a shape
                shape = None
            call = nodes_now() - self._first, shape
            if next(self._ahead, None) != call:
                self._differs(call)
        return called

    def _differs(self, call: Called) -> None:
        """Handle an unexpected call of a module: store it in a step that learns the calls; else restore the hooks."""
        if self._learning:
            self._learned.append((call, self.saved.packs))
            return
        # A backward pass restores the stack as it was after each node.
        if torch._C._current_graph_task_id() == -1:
            self._put_back()
        if self.on and not call[0]:
            self.bare = False  # nothing has been saved so far, so this is a step with hooks like any other
        elif self.bare and self.course.phase is Phase.GUIDED:
            self._partly = True
            if not self.course.astray():
                self.saved.retreat()
                self._hook_rest()

    def retreats(self) -> None:
        """Note that the step swaps out what it has kept. Before its next pack the rest, saved without hooks, gets them.
        """
        if self._partly:
            self.saved.before = self._hook_rest

    def _hook_rest(self) -> None:
        self.saved.before, self._partly = None, False
        hook_saved(self.saved.manages, self.saved.pack, self.saved.unpack)


RAW = "_raw_saved_"
# Since PyTorch 2.10 or so, a saved tensor tells if it has a hook; before that, asking would call the hook.
LEGIBLE = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


def hook_saved(manages: Callable[[torch.Tensor], bool], pack: Callable[[torch.Tensor], Any],
               unpack: Callable[[Any], torch.Tensor]) -> None:
    """Register the hooks ``pack`` and ``unpack`` for all saved tensors that ``manages`` accepts and that have none.
    PyTorch calls ``pack`` at once. A tensor that was overwritten after it was saved gets no hooks."""
    for node in _all_nodes():
        for name, read in _names(type(node)):  # type: ignore[arg-type] # mypy takes a class for unhashable
            try:
                found, values = getattr(node, name), getattr(node, read) if _bare(node, name) else None
            except RuntimeError:  # freed, or overwritten
                continue
            several = isinstance(found, (tuple, list))
            for saved, value in zip(found, values or (), strict=False) if several else [(found, values)]:
                if value is not None and saved is not None and manages(saved.data):
                    saved.register_hooks(pack, unpack)


def _bare(node: Any, name: str) -> bool:
    """True if none of a node's saved tensors has hooks, so that reading them calls no code of the program."""
    found = getattr(node, name)
    each = found if isinstance(found, (tuple, list)) else (found,)
    return all(saved is None or saved.unpack_hook is None for saved in each)


@cache
def _names(kind: type) -> tuple[tuple[str, str], ...]:
    """Return for each saved tensor of a class of autograd nodes two attributes: the raw one, and the checked one."""
    raw = [name for name in dir(kind) if name.startswith(RAW)]
    return tuple((name, "saved_tensors" if name == RAW + "tensors" and hasattr(kind, "saved_tensors")
                  else name.replace("_raw", "", 1)) for name in raw)


def _all_nodes() -> Iterator[Any]:
    """Yield every node of autograd's graphs: each is reached from a tensor that Python holds."""
    with torch._C.DisableTorchFunctionSubclass():
        todo = [node for node in (tensor.grad_fn for tensor in all_of(kinds(torch.Tensor)) if not tensor.is_leaf)
                if node is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        todo += new
