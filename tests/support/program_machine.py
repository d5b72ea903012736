"""Run the steps of a random program; a subclass for minidl or PyTorch implements each step.

A step may be refused where the documents say so (a gradient that would be lost, a freed graph, an unsuitable argument):
the refusal is recorded, and the program continues. PyTorch refuses other steps, which it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
from program_ops import concrete
from whole_programs import WRITES, Program, Step

BACKWARD = ("backward", "again", "seed")


class Wrong(AssertionError):
    """A program did what it must not do."""


class Failure(Exception):
    """A program's own error, in mid-iteration."""


class Machine:
    """A runner of a program's steps; a subclass implements each step.

    seen       all values read, and each refusal
    left_out   steps that are not tried, by iteration and position
    refused    steps that were refused
    """

    errors: tuple[type[Exception], ...]
    active: Callable[[], Any]
    iteration: Callable[[], Any]
    no_grad: Callable[[], Any]

    def __init__(self, of: Program, dtype: str, left_out: frozenset[tuple[int, int]] = frozenset()) -> None:
        self.of = of
        self.dtype = dtype
        self.left_out = left_out
        self.refused: list[tuple[int, int]] = []
        self.seen: list[Any] = []
        self.persistent: dict[int, Any] = {}
        self.values: dict[int, Any] = {}
        self.kept: dict[int, Any] = {}
        self.optimizers: list[Any] = []
        self.other: Callable[[], None] = lambda: None  # runs another program in the middle of this one

    def iterations(self) -> Iterator[None]:
        """Run the program, one iteration for each ``next``."""
        with self.active():
            self.start()
        yield
        for number, batch in enumerate(self.of.batches):
            with self.active():
                try:
                    with self.iteration():
                        self.values = {**self.persistent, **self.kept}
                        self._iterate(number, batch)
                except Failure:
                    pass
                self.values = {}
                self.boundary()
            yield
        with self.active():
            self.finish()

    def _iterate(self, number: int, batch: int) -> None:
        jump = 0
        for position, step in enumerate(self.of.steps):
            if jump or number in step.skipped or step.kind != "backward" and any(
                    n not in self.values for n in step.reads):
                jump = max(0, jump - 1)
                continue
            if step.kind == "branch":
                value = self.array(self.values[step.reads[0]])
                jump = dict(step.attrs)["steps"] if np.nan_to_num(value).sum() > 0 else 0
                continue
            if (number, position) in self.left_out:
                self._refuse(step)
                continue
            try:
                self._carry_out(step, (self.of.seed, number, position), batch)
            except self.errors as error:
                if not self.may_refuse(step, error):
                    raise
                self.refused.append((number, position))
                self._refuse(step)

    def _refuse(self, step: Step) -> None:
        self.seen.append(step.kind)
        if step.kind in BACKWARD:  # its partial result is undefined
            for value in (*self.values.values(), *self.kept.values()):
                self.forget_gradient(value)

    def _carry_out(self, step: Step, place: tuple[int, int, int], batch: int) -> None:
        values, attrs = self.values, dict(step.attrs)
        read = [values[n] for n in step.reads if n in values]
        made = None
        match step.kind:
            case "fail":
                with suppress(*self.errors):  # the error may be raised now, or when the iteration ends
                    if attrs["bad"]:
                        self.bad("row")
                raise Failure
            case "leaf":
                shape = concrete(attrs["shape"], batch)
                made = self.leaf(np.random.default_rng(place).uniform(-1.5, 1.5, shape).astype(self.dtype))
            case "ids":
                shape = concrete((attrs["count"],), batch)
                made = self.leaf(np.random.default_rng(place).integers(0, attrs["rows"], shape))
            case "delete":
                del values[step.reads[0]]
            case "read":
                self.seen.append(self.array(read[0]))
            case "keep":
                self.kept[step.makes] = read[0]
                values.pop(step.makes, None)  # the value kept before
                return
            case "require":
                read[0].requires_grad = True
            case "bad":
                made = self.bad(attrs["what"])
                self.array(made)
            case "other":
                self.other()
            case "gradient":
                made = read[0].grad
            case "zero":
                for number, _ in self.of.parameters:
                    values[number].grad = None
            case "clip":
                self.clip([values[n] for n, _ in self.of.parameters])
            case "step":
                chosen = attrs["optimizer"]
                for index, optimizer in enumerate(self.optimizers):
                    if chosen in (-1, index):
                        optimizer.step()
            case kind if kind in WRITES:
                with self.no_grad() if step.no_grad else nullcontext():
                    self.write(kind, *read)
            case kind if kind in BACKWARD:
                made = self._differentiate(kind, read, attrs.get("retain", False))
            case kind:
                if "shape" in attrs:
                    attrs["shape"] = concrete(attrs["shape"], batch)
                with self.no_grad() if step.no_grad else nullcontext():
                    made = self.call(kind, read, attrs)
        del read
        if step.makes and made is not None:
            values[step.makes] = made

    def _differentiate(self, kind: str, read: list[Any], retain: bool) -> Any:
        """Run backward: from a new loss, which is returned, from a loss whose graph was retained, or from a value."""
        if kind == "seed":
            if read[0].requires_grad:
                read[0].backward(self.constant(read[1]))
            return None
        if kind == "again":
            if read[0].requires_grad:
                read[0].backward()
            return None
        losses = [self.loss(x) for x in read]
        if not losses:
            return None
        made = losses[0]
        for loss in losses[1:]:
            made = made + loss
        if made.requires_grad:
            made.backward(retain_graph=retain)
        return made

    def note(self) -> None:
        """Record all that the program has changed, and all values that it holds."""
        values = [self.persistent[n] for n, _ in (*self.of.parameters, *self.of.buffers, *self.of.constants)]
        values += [grad for n, _ in (*self.of.parameters, *self.of.constants)
                   if (grad := self.persistent[n].grad) is not None]
        self.seen += [self.array(value) for value in [*values, *self.kept.values()]]

    # What a subclass says ------------------------------------------------------------------------------------
    def start(self) -> None:
        """Make parameters, buffers, what else lasts, and optimizers."""
        raise NotImplementedError

    def boundary(self) -> None:
        """End an iteration."""

    def finish(self) -> None:
        """End the program."""
        self.note()

    def may_refuse(self, step: Step, error: Exception) -> bool:
        """Return True if the documents allow this refusal."""
        raise NotImplementedError

    def leaf(self, values: np.ndarray) -> Any:
        """A tensor with these values."""
        raise NotImplementedError

    def constant(self, value: Any) -> Any:
        """Return a value without gradients."""
        return value.detach()

    def array(self, value: Any) -> np.ndarray:
        """A copy of a tensor's values."""
        raise NotImplementedError

    def call(self, kind: str, read: list[Any], attrs: dict[str, Any]) -> Any:
        """The result of an operation."""
        raise NotImplementedError

    def bad(self, what: str) -> Any:
        """Return the result of a call that fails, now or when it is read."""
        raise NotImplementedError

    def loss(self, x: Any) -> Any:
        """Return a number that depends on every element of a value."""
        raise NotImplementedError

    def write(self, kind: str, target: Any, source: Any) -> None:
        """Write in place."""
        raise NotImplementedError

    def clip(self, parameters: list[Any]) -> None:
        """Clip the gradients to a norm of 0.5."""
        raise NotImplementedError

    def forget_gradient(self, value: Any) -> None:
        """Remove a value's gradient."""
        raise NotImplementedError
