"""Random whole programs, drawn from a seed as data: what a user may write, run here and in PyTorch.

A program is a list of steps that each iteration runs, with the iterations in which a step is left out. A step whose
operands do not exist is skipped, so removing any step leaves a valid program: that is how a failing one is shrunk.
Values are held, deleted, or kept for the next iteration, with their graph or as leaves. Parameters are shared. There
are several losses and optimizers, reads by the host, branches on values read, in-place writes also where gradients
flow, calls and iterations that fail, changing batches, operands without rows, parameters that only sometimes have a
gradient, retained graphs, and another program that runs in mid-iteration.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from program_ops import BATCH, KINDS, MOST_ELEMENTS, Choice, Draft, Shape, elements, weights

WRITES = ("add_", "copy_", "fill_")
OPTIMIZERS = ("sgd", "momentum", "adam")
VERBS = ("leaf", "read", "delete", "keep", "branch", "write", "write", "hold gradient", "hold gradient", "require",
         "bad", "other", "again", "seed")


@dataclass(frozen=True)
class Step:
    """One step: an operation or a verb.

    It has the values it reads, the one it makes (0: none), the iterations that leave it out, and if gradients flow
    through it.
    """

    kind: str
    reads: tuple[int, ...] = ()
    makes: int = 0
    attrs: tuple[tuple[str, Any], ...] = ()
    skipped: frozenset[int] = frozenset()
    no_grad: bool = False

    def __str__(self) -> str:
        made = f"v{self.makes} = " if self.makes else ""
        attrs = [f"{name}={value}" for name, value in self.attrs]
        notes = f"  # not in {sorted(self.skipped)}" * bool(self.skipped) + "  # no_grad" * self.no_grad
        return f"{made}{self.kind}({', '.join([f'v{n}' for n in self.reads] + attrs)}){notes}"


@dataclass(frozen=True)
class Program:
    """A program as data.

    It has parameters, buffers, leaves and views of parameters that exist in every iteration, by number; optimizers and
    what each trains; the batch of each iteration; the steps.
    """

    seed: int
    parameters: tuple[tuple[int, Shape], ...]
    buffers: tuple[tuple[int, Shape], ...]
    optimizers: tuple[tuple[str, tuple[int, ...]], ...]
    batches: tuple[int, ...]
    steps: tuple[Step, ...]
    constants: tuple[tuple[int, Shape], ...] = ()
    views: tuple[tuple[int, int], ...] = ()  # (view, parameter): the parameter with reversed dimensions

    def __str__(self) -> str:
        lines = [f"program {self.seed}: batches {self.batches}"]
        lines += [f"  v{n} = parameter{shape}" for n, shape in self.parameters]
        lines += [f"  v{n} = buffer{shape}" for n, shape in self.buffers]
        lines += [f"  v{n} = leaf{shape}" for n, shape in self.constants]
        lines += [f"  v{n} = reversed(v{of})" for n, of in self.views]
        lines += [f"  optimizer {i}: {kind} of {numbers}" for i, (kind, numbers) in enumerate(self.optimizers)]
        return "\n".join(lines + [f"    {step}" for step in self.steps])


def program(seed: int) -> Program:
    """Return the program of a seed."""
    return _Author(seed).write()


@dataclass
class _Author:
    seed: int
    steps: list[Step] = field(default_factory=list)

    def write(self) -> Program:
        self.draw = draw = random.Random(self.seed)
        self.draft = draft = Draft(draw)
        self.iterations = draw.choice([2, 3, 4, 4, 5])
        self.kept: dict[int, Shape] = {}
        self.losses: list[int] = []
        self.left_out = draw.choice([0.0, 0.05, 0.05, 0.15])  # probability that a step is left out
        for _ in range(draw.choice([1, 2])):
            draft.parameter(self._shape(batch=False))
        self._lasting()
        self._leaf()
        for _ in range(draw.choice([1, 1, 1, 2])):  # losses, or updates, one after another
            for _ in range(draw.randint(3, 14)):
                self._operation() if draw.random() < 0.75 else self._verb()
            self._train()
        if draw.random() < 0.1:
            others = frozenset(range(self.iterations)) - {draw.randrange(self.iterations)}
            bad = (("bad", draw.random() < 0.5),)
            self.steps.insert(draw.randrange(len(self.steps)), Step("fail", attrs=bad, skipped=others))
        batch = draw.choice([1, 2, 3, 4])
        sizes = draw.choice([[batch], [batch], [batch], [1, 2, 4, 5], [0, 1, 4]])
        batches = tuple(draw.choice(sizes) for _ in range(self.iterations))
        used = {n for step in self.steps for n in step.reads}
        used |= {of for number, of in draft.views.items() if number in used}
        parameters = tuple((n, s) for n, s in draft.parameters.items() if n in used)
        groups = [tuple(n for n, _ in parameters)] if draw.random() < 0.6 else [
            tuple(n for n, _ in parameters[first::2]) for first in (0, 1)]
        return Program(self.seed, parameters, tuple(draft.buffers.items()),
                       tuple((draw.choice(OPTIMIZERS), numbers) for numbers in groups if numbers), batches,
                       tuple(self.steps), tuple((n, s) for n, s in draft.constants.items() if n in used),
                       tuple((n, of) for n, of in draft.views.items() if n in used))

    def _lasting(self) -> None:
        """Add leaves and views of parameters that are made once, for all iterations."""
        draw, draft = self.draw, self.draft
        if draw.random() < 0.3:
            number = draft.number()
            draft.constants[number] = draft.shapes[number] = self._shape(batch=False)
        if draw.random() < 0.2:
            of = draw.choice(list(draft.parameters))
            number = draft.number()
            draft.views[number] = of
            draft.shapes[number] = draft.shapes[of][::-1]

    def _shape(self, *, batch: bool = True) -> Shape:
        draw = self.draw
        dims: list[int | str] = [draw.choice([1, 2, 3, 4, 8, 16, 64]) if draw.random() < 0.98 else 0
                                 for _ in range(draw.choice([1, 1, 2, 2, 3]))]
        if batch and draw.random() < 0.2:
            dims = [2, draw.choice([2, 4]), draw.choice([2, 4, 6])]
        shape: Shape = (BATCH, *dims) if batch and draw.random() < 0.8 else tuple(dims)
        return shape if elements(shape) <= MOST_ELEMENTS else shape[:1]

    def _add(self, kind: str, reads: tuple[int, ...] = (), makes: int = 0, no_grad: float = 0.03, **attrs: Any) -> None:
        """Add a step; ``no_grad``: the probability that no gradient flows through it."""
        draw = self.draw
        left_out = draw.random() < self.left_out and kind not in ("zero", "backward")
        skipped = frozenset(draw.sample(range(self.iterations), draw.randint(1, self.iterations))) if left_out else ()
        self.steps.append(Step(kind, reads, makes, tuple(attrs.items()), frozenset(skipped),
                               no_grad=(kind in KINDS or kind in WRITES) and draw.random() < no_grad))

    def _leaf(self) -> None:
        number = self.draft.number()
        self.draft.shapes[number] = shape = self._shape()
        self._add("leaf", (), number, shape=shape)

    def _operation(self) -> None:
        draw, draft = self.draw, self.draft
        for _ in range(20):
            name = draw.choices(list(KINDS), weights(list(KINDS)))[0]
            choice: Choice | None = KINDS[name].rule(draft)
            if choice is None:
                continue
            reads, attrs, shape = choice
            if name in ("embedding", "cross_entropy"):
                ids = draft.number()
                self._add("ids", (), ids, **attrs)
                if name == "embedding":
                    shape = (attrs["count"], draft.parameters[reads[0]][1])
                reads, attrs = (*reads, ids), {}
            number = draft.number()
            draft.shapes[number] = shape
            self._add(name, reads, number, **attrs)
            return

    def _verb(self) -> None:
        draw, draft = self.draw, self.draft
        values = [n for n in draft.shapes if n not in draft.parameters]
        if not values:
            return self._leaf()
        value = draw.choice(values)
        match draw.choice(VERBS):
            case "leaf":
                self._leaf()
            case "read":
                self._add("read", (value,))
            case "delete":
                del draft.shapes[value]
                self._add("delete", (value,))
            case "keep":  # in the next iteration it has another number; it is made there, if at all, by this step
                number = draft.number()
                self._add("keep", (value,), number)
                if BATCH not in draft.shapes[value]:
                    self.kept[number] = draft.shapes[value]
            case "branch":
                self._add("branch", (value,), steps=draw.randint(1, 3))
            case "write":
                value = draw.choice([value, value, *(n for n in (*draft.parameters, *draft.constants)
                                                     if n in draft.shapes)])
                source = self._like(value)
                self._add(draw.choice(WRITES), (value, source), no_grad=0.6)
            case "require":
                self._add("require", (draw.choice([value, *draft.constants]),))
            case "bad":
                self._add("bad", (), 0, what=draw.choice(["row", "label", "shape"]))
            case "other":
                self._add("other")
            case "again" if self.losses:
                self._add("again", (draw.choice(self.losses),))
            case "seed":
                self._add("seed", (value, self._like(value)))
            case "hold gradient" if draft.parameters:
                parameter = draw.choice(list(draft.parameters))
                number = draft.number()
                draft.shapes[number] = draft.parameters[parameter]
                self._add("gradient", (parameter,), number)
        if self.kept and draw.random() < 0.5:
            draft.shapes |= self.kept  # later steps may read it
            self.kept = {}

    def _like(self, value: int) -> int:
        """Return a value of the same shape, perhaps itself."""
        shape = self.draft.shapes[value]
        found = self.draft.pick(lambda other: other == shape)
        assert found is not None
        return found

    def _train(self) -> None:
        draw, draft = self.draw, self.draft
        values = [n for n in draft.shapes if n not in draft.parameters]
        if not values:
            return
        wanted = tuple(dict.fromkeys([values[-1], *draw.sample(values, min(len(values), draw.choice([0, 1, 2])))]))
        if draw.random() < 0.8:
            self._add("zero")
        number = draft.number()
        self._add("backward", wanted, number, retain=draw.random() < 0.2)
        draft.shapes[number] = ()
        self.losses.append(number)
        if draw.random() < 0.1:
            self._add("again", (number,))
        if draw.random() < 0.3:
            for value in draw.sample(values, len(values) // 2):
                self._add("delete", (value,))
                del draft.shapes[value]
        if draw.random() < 0.3:
            self._add("clip")
        self._add("step", (), 0, optimizer=draw.choice([0, 1, -1, -1]))
        if draw.random() < 0.5:
            self._add("read", (number,))


def smaller(of: Program) -> Iterable[Program]:
    """Yield smaller programs, the largest reduction first: fewer iterations, then fewer steps."""
    for count in range(1, len(of.batches)):
        yield replace(of, batches=of.batches[:count])
    size = len(of.steps)
    while size:
        for first in range(0, len(of.steps), size):
            yield replace(of, steps=of.steps[:first] + of.steps[first + size:])
        size //= 2
    used = {n for step in of.steps for n in step.reads}
    used |= {parameter for n, parameter in of.views if n in used}
    for index, (kind, numbers) in enumerate(of.optimizers):
        rest = of.optimizers[:index], of.optimizers[index + 1:]
        if len(numbers) > 1:
            for number in numbers:
                less = tuple(n for n in numbers if n != number)
                yield replace(of, optimizers=(*rest[0], (kind, less), *rest[1]))
    lasting = (*of.parameters, *of.buffers, *of.constants, *of.views)
    if any(n not in used for n, _ in lasting):
        yield replace(of, parameters=tuple((n, s) for n, s in of.parameters if n in used),
                      buffers=tuple((n, s) for n, s in of.buffers if n in used),
                      constants=tuple((n, s) for n, s in of.constants if n in used),
                      views=tuple((n, s) for n, s in of.views if n in used),
                      optimizers=tuple((k, less) for k, ns in of.optimizers
                                       if (less := tuple(n for n in ns if n in used))))
    for index, step in enumerate(of.steps):
        if step.skipped or step.no_grad:
            plain = replace(step, skipped=frozenset(), no_grad=False)
            yield replace(of, steps=(*of.steps[:index], plain, *of.steps[index + 1:]))
    if len(set(of.batches)) > 1 or of.batches[0] > 1:
        yield replace(of, batches=(1,) * len(of.batches))
