"""Runs whole programs: unmanaged, under any policy in any budget, two at a time, and in PyTorch; and compares.

Unmanaged and managed runs have every bit in common: what was read, parameters, gradients, states, what was kept. A
managed run may be refused only where the host is full. PyTorch's numbers are compared in float64.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from program_ops import KINDS, concrete
from whole_programs import Program, Step, program, smaller

from minidl import Runtime, meta, no_grad, ops, policies
from minidl.errors import OutOfMemory, UserError
from minidl.memory.ledger import working_set
from minidl.optim import SGD, Adam
from minidl.optim.clip import clip_global_norm
from minidl.policies.auto import policy as auto
from minidl.policies.systems import SYSTEMS
from minidl.runtime import parameter

UNLIMITED = 1 << 24  # bytes: more than any of these programs needs
AUTO_WORK = 1e5  # calls that a search may simulate: enough for a plan, not for a good one
STEP = 256  # bytes between two budgets
MANAGED = tuple(name for name in policies.names() if name not in ("none", "exact", *SYSTEMS))
HOSTS = ("plenty", "plenty", "a little", "none")
TRIES = 400  # of a program that is being shrunk
TOLERANCE = 1e-7  # of PyTorch's numbers, in float64, relative to the largest of a tensor and to 1


class Wrong(AssertionError):
    """A program did what it must not do."""


class Failure(Exception):
    """A program's own error, in mid-iteration."""


class Machine:
    """Carries the steps of a program out; a subclass says how each is done. ``seen`` is all that was read."""

    def __init__(self, of: Program, dtype: str) -> None:
        self.of = of
        self.dtype = dtype
        self.seen: list[Any] = []
        self.values: dict[int, Any] = {}
        self.kept: dict[int, Any] = {}
        self.ended = False  # by an error

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
                except (Failure, OutOfMemory) as error:
                    if isinstance(error, OutOfMemory):
                        raise
                except self.errors as error:
                    self.seen.append(type(error).__name__)
                    self.ended = True
                self.values = {}
                self.boundary()
                if self.ended:
                    return
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
            self._carry_out(step, np.random.default_rng([self.of.seed, number, position]), batch)

    def _carry_out(self, step: Step, rng: np.random.Generator, batch: int) -> None:
        values, attrs = self.values, dict(step.attrs)
        read = [values[n] for n in step.reads if n in values]
        made = None
        match step.kind:
            case "fail":
                raise Failure
            case "leaf":
                made = self.leaf(rng.uniform(-1.5, 1.5, concrete(attrs["shape"], batch)).astype(self.dtype))
            case "ids":
                made = self.leaf(rng.integers(0, attrs["rows"], concrete((attrs["count"],), batch)))
            case "delete":
                del values[step.reads[0]]
            case "read":
                self.seen.append(self.array(read[0]))
            case "keep":
                self.kept[step.makes] = read[0]
                values.pop(step.makes, None)  # what was kept before
                return
            case "add_" | "copy_" | "fill_":
                if not read[0].requires_grad:
                    self.write(step.kind, *read)
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
            case "backward":
                losses = [self.loss(x) for x in read]
                if losses:
                    made = losses[0]
                    for loss in losses[1:]:
                        made = made + loss
                    if made.requires_grad:
                        made.backward()
            case kind:
                if "shape" in attrs:
                    attrs["shape"] = concrete(attrs["shape"], batch)
                with self.no_grad() if step.no_grad else nullcontext():
                    made = self.call(kind, read, attrs)
        del read
        if step.makes and made is not None:
            values[step.makes] = made

    def state(self) -> list[Any]:
        """All that the program has changed, and all that it has read."""
        return self.seen

    def _note(self) -> None:
        values = [self.persistent[n] for n, _ in (*self.of.parameters, *self.of.buffers)]
        values += [self.persistent[n].grad for n, _ in self.of.parameters if self.persistent[n].grad is not None]
        self.seen += [self.array(value) for value in [*values, *self.kept.values()]]


class Ours(Machine):
    """minidl, in a runtime."""

    errors = (UserError,)

    def __init__(self, of: Program, runtime: Runtime, dtype: str = "float32") -> None:
        super().__init__(of, dtype)
        self.runtime = runtime
        self.active = lambda: runtime
        self.iteration = runtime.iteration
        self.no_grad = no_grad

    def start(self) -> None:
        rng = np.random.default_rng(self.of.seed)
        dtype = meta.DTYPES[self.dtype]
        self.persistent = {n: parameter(concrete(s, 1), dtype=dtype) for n, s in self.of.parameters}
        for tensor in self.persistent.values():
            ops.upload_(tensor, rng.uniform(-1, 1, tensor.shape).astype(self.dtype))
        for n, s in self.of.buffers:
            self.persistent[n] = parameter(concrete(s, 1), dtype=dtype, requires_grad=False)
            ops.fill_(self.persistent[n], 1.0)
        make = {"sgd": lambda ps: SGD(ps, lr=0.05), "momentum": lambda ps: SGD(ps, lr=0.05, momentum=0.9),
                "adam": lambda ps: Adam(ps, lr=0.01)}
        self.optimizers = [make[kind]([self.persistent[n] for n in numbers]) for kind, numbers in self.of.optimizers]

    def boundary(self) -> None:
        self.runtime.check()

    def finish(self) -> None:
        self._note()
        for optimizer in self.optimizers:
            self.seen += [value for _, value in sorted(optimizer.state_dict().items())]

    def leaf(self, values: np.ndarray) -> Any:
        return self.runtime.tensor(values)

    def array(self, value: Any) -> np.ndarray:
        return value.numpy()

    def call(self, kind: str, read: list[Any], attrs: dict[str, Any]) -> Any:
        return KINDS[kind].ours(*read, **attrs)

    def loss(self, x: Any) -> Any:
        return ops.tanh(x).mean()

    def write(self, kind: str, target: Any, source: Any) -> None:
        with no_grad():
            if kind == "fill_":
                target.fill_(0.5)
            else:
                getattr(target, kind)(source)

    def clip(self, parameters: list[Any]) -> None:
        clip_global_norm(parameters, 0.5)

    def close(self) -> None:
        """Let go of everything; nothing may be left then."""
        tensor = None
        for tensor in self.persistent.values():
            tensor.grad = None
        del tensor
        self.persistent, self.kept, self.values, self.optimizers = {}, {}, {}, []
        self.runtime.memory.bury()
        self.runtime.check()
        left = self.runtime.memory.live()
        if left:
            raise Wrong(f"{len(left)} tensors are left: {left[:3]}")


@dataclass(frozen=True)
class Reference:
    """What an unmanaged run has seen, what its largest call needs, and the most that it had (bytes)."""

    seen: list[Any]
    floor: int
    peak: int


def reference(of: Program, dtype: str = "float32") -> Reference:
    """The unmanaged run."""
    with Runtime("cpu", policy="none", memory_budget=UNLIMITED, host_memory=0) as runtime:
        machine = Ours(of, runtime, dtype)
        with _largest(runtime) as needs:
            for _ in machine.iterations():
                pass
            result = Reference(machine.state(), max(needs), max(*needs, runtime.stats().peak_bytes))
        machine.close()
    return result


@contextmanager
def _largest(runtime: Runtime) -> Iterator[list[int]]:
    needs, carry_out, place = [STEP], runtime.memory.carry_out, runtime.memory.place_leaf

    def carried_out(signature: Any, attrs: Any, inputs: Any, outputs: Any, *rest: Any) -> Any:
        least = min(a.workspace for a in signature.algorithms)
        needs.append(working_set(signature, inputs, outputs) + meta.aligned(least))
        return carry_out(signature, attrs, inputs, outputs, *rest)

    def placed(storage: Any) -> None:
        needs.append(meta.aligned(storage.nbytes))
        place(storage)

    runtime.memory.carry_out, runtime.memory.place_leaf = carried_out, placed
    yield needs
    runtime.memory.carry_out, runtime.memory.place_leaf = carry_out, place


@dataclass(frozen=True)
class Setting:
    """How a program is run. ``twin``: another program runs beside it, in another runtime (0: none)."""

    policy: str
    budget: int
    host: str
    poisoned: bool
    twin: int = 0


def settings(of: Program, need: Reference, draw: random.Random, count: int) -> Iterator[Setting]:
    """Some of the settings of a program, the floor among them; all if ``count`` is 0."""
    budgets = range(need.floor, need.peak + STEP, STEP)
    if not count:
        yield from (Setting(policy, budget, host, poisoned) for policy in MANAGED for budget in budgets
                    for host in dict.fromkeys(HOSTS) for poisoned in (False, True))
    for number in range(count):
        budget = budgets[0] if not number else budgets[int(len(budgets) * draw.random() ** 2)]
        yield Setting(draw.choice(MANAGED), budget, draw.choice(HOSTS), draw.random() < 0.5,
                      twin=draw.randrange(1, 1000) if draw.random() < 0.05 else 0)


def managed(of: Program, need: Reference, how: Setting) -> None:
    """A managed run. Raises Wrong if it differs, is refused though it fits, or leaves something."""
    host = {"plenty": UNLIMITED, "a little": max(STEP, need.peak // 4), "none": 0}[how.host]
    policy = auto.Auto(rounds=3) if how.policy == "auto" else how.policy
    runtime = Runtime("cpu", policy=policy, memory_budget=how.budget, host_memory=host, poisoned=how.poisoned)
    machine = Ours(of, runtime)
    twin = None
    if how.twin:
        other = program(how.twin)
        twin = Ours(other, Runtime("cpu", policy=how.policy, memory_budget=UNLIMITED, host_memory=0)).iterations()
    try:
        with patch.object(auto, "FIRST_WORK", AUTO_WORK):
            for _ in machine.iterations():
                if twin is not None:
                    next(twin, None)
    except OutOfMemory as error:
        if not error.host_full or how.host == "plenty":
            raise Wrong(f"refused: {error}") from error
        return
    compare(need.seen, machine.state())
    with runtime:
        machine.close()


def compare(wanted: list[Any], found: list[Any]) -> None:
    """Raises Wrong unless two runs have seen the same bits."""
    if len(wanted) != len(found):
        raise Wrong(f"{len(found)} values instead of {len(wanted)}, the last is {found[-1:]}")
    for index, (want, got) in enumerate(zip(wanted, found, strict=True)):
        same = want == got if isinstance(want, str) or isinstance(got, str) else (
            want.shape == got.shape and want.tobytes() == got.tobytes())
        if not same:
            raise Wrong(f"value {index} of {len(wanted)} differs: {want} and {got}")


def check(of: Program, count: int, *, peer: Any = None) -> int:
    """Run a program unmanaged, under ``count`` settings (0: all) and in PyTorch, if that is given; returns how many
    runs that were. Raises Wrong, or what a broken engine raises, with the setting and the smallest program as notes."""
    need = reference(of)
    runs = 1
    for how in settings(of, need, random.Random(of.seed), count):
        try:
            managed(of, need, how)
        except Exception as error:
            error.add_note(f"program {of.seed} under {how}; floor {need.floor}, peak {need.peak}")
            error.add_note(str(shrink(of, partial(_fails_alike, how=how))))
            raise
        runs += 1
    if peer is not None:
        try:
            compare_with_peer(of, peer)
        except Exception as error:
            error.add_note(str(shrink(of, partial(_differs, peer=peer))))
            raise
    return runs


def compare_with_peer(of: Program, torch: Any) -> None:
    """Raises Wrong where PyTorch's numbers are others. A program that one of both refuses is compared up to there."""
    from program_peer import Peer  # knows this module
    peer = Peer(of, torch)
    for _ in peer.iterations():
        pass
    for index, (ours, theirs) in enumerate(zip(reference(of, "float64").seen, peer.seen, strict=False)):
        if isinstance(ours, str) or isinstance(theirs, str):
            return
        scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0.0, atol=TOLERANCE * scale,
                                                          equal_nan=True):
            raise Wrong(f"value {index} differs from PyTorch's: {ours} and {theirs}")


def _fails_alike(of: Program, *, how: Setting) -> bool:
    """Whether a program fails under a policy and host like this, in some budget."""
    try:
        need = reference(of)
    except Exception:
        return False
    for budget in range(need.floor, min(need.peak, need.floor + 16 * STEP) + STEP, STEP):
        try:
            managed(of, need, replace(how, budget=budget))
        except Exception:
            return True
    return False


def _differs(of: Program, *, peer: Any) -> bool:
    try:
        compare_with_peer(of, peer)
    except Wrong:
        return True
    return False


def shrink(of: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program that is found in ``TRIES``, one piece less at a time, and that still fails; itself if none
    does."""
    tries, again = 0, True
    while again:
        again = False
        for less in smaller(of):
            tries += 1
            if tries > TRIES:
                break
            if fails(less):
                of, again = less, True
                break
    return of
