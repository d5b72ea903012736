"""Runs whole programs: unmanaged, under any policy in any budget, one in the middle of another; and compares.

Unmanaged and managed runs have every bit in common: what was read, what was refused, parameters, gradients, states,
what was kept. A managed run may fail only where the host is full.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from program_machine import BACKWARD, Machine, Wrong
from program_ops import KINDS, concrete
from whole_programs import WRITES, Program, Step, smaller

from minidl import Runtime, meta, no_grad, ops, policies
from minidl.errors import OutOfMemory, Unrecoverable, UserError
from minidl.memory.ledger import working_set
from minidl.optim import SGD, Adam
from minidl.optim.clip import clip_global_norm
from minidl.policies.auto import policy as auto
from minidl.policies.literature import SOLVERS, SYSTEMS
from minidl.runtime import parameter

UNLIMITED = 1 << 24  # bytes: more than any of these programs needs
AUTO_WORK = 2e4  # calls that a search may simulate: enough for a plan, not for a good one
STEP = 256  # bytes between two budgets
MANAGED = tuple(name for name in policies.names() if name not in ("none", "exact", *(SYSTEMS.keys() - SOLVERS)))
DEVICES = ("cpu:virtual", "cpu:virtual", "cpu:virtual", "cpu")  # threads take longer to wake up than to compute this
HOSTS = ("plenty", "plenty", "a little", "none")
TRIES = 400  # of a program that is being shrunk
REFUSALS = dict.fromkeys(BACKWARD, ("whose graph is gone", "was written in place since", "has been taken already")) | (
    dict.fromkeys(WRITES, ("would overwrite", "would lose the gradient", "would write several"))) | {
    "require": ("can be set on leaves only",), "batch_norm": ("more than one value",), "bad": ("",)}


class Ours(Machine):
    """minidl, in a runtime."""

    errors = (UserError, ValueError)

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
        for tensor in list(self.persistent.values()):
            ops.upload_(tensor, rng.uniform(-1, 1, tensor.shape).astype(self.dtype))
        for n, s in self.of.buffers:
            self.persistent[n] = parameter(concrete(s, 1), dtype=dtype, requires_grad=False)
            ops.fill_(self.persistent[n], 1.0)
        for n, s in self.of.constants:
            self.persistent[n] = self.leaf(rng.uniform(-1, 1, concrete(s, 1)).astype(self.dtype))
        for n, of in self.of.views:
            self.persistent[n] = self.persistent[of].permute(tuple(reversed(range(self.persistent[of].ndim))))
        make = {"sgd": lambda ps: SGD(ps, lr=0.05), "momentum": lambda ps: SGD(ps, lr=0.05, momentum=0.9),
                "adam": lambda ps: Adam(ps, lr=0.01)}
        self.optimizers = [make[kind]([self.persistent[n] for n in numbers]) for kind, numbers in self.of.optimizers]

    def boundary(self) -> None:
        self.runtime.check()

    def finish(self) -> None:
        super().finish()
        for optimizer in self.optimizers:
            self.seen += [value for _, value in sorted(optimizer.state_dict().items())]

    def leaf(self, values: np.ndarray) -> Any:
        return self.runtime.tensor(values)

    def array(self, value: Any) -> np.ndarray:
        return value.numpy()

    def call(self, kind: str, read: list[Any], attrs: dict[str, Any]) -> Any:
        return KINDS[kind].ours(*read, **attrs)

    def may_refuse(self, step: Step, error: Exception) -> bool:
        return not isinstance(error, OutOfMemory | Unrecoverable) and any(
            text in str(error) for text in REFUSALS.get(step.kind, ()))

    def bad(self, what: str) -> Any:
        if what == "shape":
            return self.leaf(np.ones((2, 3), "f4")) @ self.leaf(np.ones((2, 3), "f4"))
        rows = self.leaf(np.array([0, 9]))
        if what == "label":
            return ops.cross_entropy(self.leaf(np.ones((2, 3), "f4")), rows)
        return ops.tanh(ops.embedding_(self.leaf(np.ones((3, 2), "f4")), rows))

    def loss(self, x: Any) -> Any:
        return ops.tanh(x).mean() if x.numel() else ops.tanh(x).sum()

    def write(self, kind: str, target: Any, source: Any) -> None:
        if kind == "fill_":
            ops.fill_(target, 0.5)
        else:
            getattr(ops, kind)(target, source)

    def clip(self, parameters: list[Any]) -> None:
        clip_global_norm(parameters, 0.5)

    def forget_gradient(self, value: Any) -> None:
        value.grad = None

    def close(self) -> None:
        """Let go of everything; nothing may be left then."""
        tensor = None
        for tensor in self.persistent.values():
            tensor.grad = None
        del tensor
        self.persistent, self.kept, self.values, self.optimizers = {}, {}, {}, []
        self.runtime.memory.free_queued()
        self.runtime.check()
        left = self.runtime.memory.live()
        if left:
            raise Wrong(f"{len(left)} tensors are left: {left[:3]}")


@dataclass(frozen=True)
class Reference:
    """What an unmanaged run has seen and which steps were refused, what its largest call needs, and the most that it
    had (bytes)."""

    seen: list[Any]
    refused: list[tuple[int, int]]
    floor: int
    peak: int


def reference(of: Program, dtype: str = "float32") -> Reference:
    """The unmanaged run."""
    with Runtime("cpu:virtual", policy="none", memory_budget=UNLIMITED, host_memory=0) as runtime:
        machine = Ours(of, runtime, dtype)
        with _largest(runtime) as needs:
            for _ in machine.iterations():
                pass
            result = Reference(machine.seen, machine.refused, max(needs), max(*needs, runtime.stats().peak_bytes))
        machine.close()
    return result


@contextmanager
def _largest(runtime: Runtime) -> Iterator[list[int]]:
    runner = runtime.memory.runner
    needs, run, place = [STEP], runner.run, runner.place_leaf

    def counted(signature: Any, attrs: Any, inputs: Any, outputs: Any, *rest: Any) -> Any:
        least = min(a.workspace for a in signature.algorithms)
        needs.append(working_set(signature, inputs, outputs) + meta.aligned(least))
        return run(signature, attrs, inputs, outputs, *rest)

    def placed(storage: Any) -> None:
        needs.append(meta.aligned(storage.nbytes))
        place(storage)

    runner.run, runner.place_leaf = counted, placed  # type: ignore[method-assign]
    yield needs
    runner.run, runner.place_leaf = run, place  # type: ignore[method-assign]


@dataclass(frozen=True)
class Setting:
    """How a program is run. ``twin``: how the same program is run beside it, in another runtime."""

    policy: str
    budget: int
    host: str
    poisoned: bool
    device: str = "cpu"
    twin: Setting | None = None


def settings(need: Reference, draw: random.Random, count: int) -> Iterator[Setting]:
    """Some of the settings of a program, the floor among them; all if ``count`` is 0."""
    budgets = range(need.floor, need.peak + STEP, STEP)
    if not count:
        yield from (Setting(policy, budget, host, poisoned) for policy in MANAGED for budget in budgets
                    for host in dict.fromkeys(HOSTS) for poisoned in (False, True))
    for number in range(count):
        budget = budgets[0] if not number else budgets[int(len(budgets) * draw.random() ** 2)]
        twin = Setting(draw.choice(MANAGED), draw.choice(budgets), "plenty", draw.random() < 0.5)
        yield Setting(draw.choice(MANAGED), budget, draw.choice(HOSTS), draw.random() < 0.5,
                      draw.choice(DEVICES), twin if draw.random() < 0.1 else None)


def managed(of: Program, need: Reference, how: Setting) -> None:
    """A managed run. Raises Wrong if it differs, is refused though it fits, or leaves something."""
    machine = _machine(of, need, how)
    machines = [machine]
    steps = iter(())
    if how.twin is not None:
        twin = _machine(of, need, how.twin)
        machines.append(twin)
        steps = twin.iterations()
        machine.other = lambda: next(steps, None)
    try:
        with patch.object(auto, "FIRST_WORK", AUTO_WORK):
            for _ in machine.iterations():
                next(steps, None)
            for _ in steps:
                pass
    except OutOfMemory as error:
        if not error.host_full or how.host == "plenty":
            raise Wrong(f"refused: {error}") from error
        return
    for each in machines:
        compare(need.seen, each.seen)
        with each.runtime:
            each.close()


def _machine(of: Program, need: Reference, how: Setting) -> Ours:
    host = {"plenty": UNLIMITED, "a little": max(STEP, need.peak // 4), "none": 0}[how.host]
    policy = auto.Auto(rounds=3) if how.policy == "auto" else how.policy
    return Ours(of, Runtime(how.device, policy=policy, memory_budget=how.budget, host_memory=host,
                            poisoned=how.poisoned))


def compare(wanted: list[Any], found: list[Any]) -> None:
    """Raises Wrong unless two runs have seen the same bits."""
    if len(wanted) != len(found):
        raise Wrong(f"{len(found)} values instead of {len(wanted)}, the last is {found[-1:]}")
    for index, (want, got) in enumerate(zip(wanted, found, strict=True)):
        same = want == got if isinstance(want, str) or isinstance(got, str) else (
            want.shape == got.shape and want.tobytes() == got.tobytes())
        if not same:
            raise Wrong(f"value {index} of {len(wanted)} differs: {want} and {got}")


def check(of: Program, count: int) -> int:
    """Run a program unmanaged and under ``count`` settings (0: all); returns how many runs that were. Raises Wrong, or
    what a broken engine raises, with the setting and the smallest program as notes."""
    need = reference(of)
    runs = 1
    for how in settings(need, random.Random(of.seed), count):
        try:
            managed(of, need, how)
        except Exception as error:
            error.add_note(f"program {of.seed} under {how}; floor {need.floor}, peak {need.peak}")
            error.add_note(str(shrink(of, partial(_fails_alike, how=how))))
            raise
        runs += 1
    return runs


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
