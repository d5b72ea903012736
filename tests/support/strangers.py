"""Training steps as other programs would record them: transformers, U-Nets, VGGs with a table of algorithms for each
convolution, recurrent and tree-shaped networks, GANs, and others. Each is a function of a seed that gives a Trace.

A network is written as its forward pass; the backward pass follows from it. A call's gradient reads the gradient of
its output, and its inputs or its output, as its kind says; gradients that meet are added.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from random_programs import MIB

from minidl.meta import Algorithm
from minidl.plan.trace import Trace, TraceCall, TraceTensor


class Step:
    """A training step as it is written: ``op`` for each call of the forward pass, ``trace`` in the end."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.sizes: list[int] = []
        self._rows: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[Algorithm, ...]]] = []
        self._forward: list[tuple[tuple[int, ...], int, float, bool, tuple[Algorithm, ...]]] = []
        self._persistent: set[int] = set()

    def tensor(self, mib: float, *, persistent: bool = False) -> int:
        """A tensor of so many MiB, up to a tenth more or less."""
        self.sizes.append(max(1024, round(mib * MIB * self.draw.uniform(0.9, 1.1))))
        if persistent:
            self._persistent.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def op(self, inputs: Sequence[int], mib: float, seconds: float, *, reads_inputs: bool = True,
           table: Sequence[tuple[float, float]] = ()) -> int:
        """A call and its output. reads_inputs: its gradient wants its inputs, else its output; table: algorithms as
        (share of the seconds, MiB of workspace), the fastest first."""
        seconds *= self.draw.uniform(0.8, 1.25)
        output = self.tensor(mib)
        ways = tuple(Algorithm(str(n), seconds * share, round(workspace * MIB))
                     for n, (share, workspace) in enumerate(table)) or (Algorithm("", seconds),)
        self._forward.append((tuple(inputs), output, seconds, reads_inputs, ways))
        self._call("forward", tuple(inputs), (output,), ways)
        return output

    def layer(self, x: int, mib: float, seconds: float, weight: float, **how: Sequence[tuple[float, float]]) -> int:
        """A call with a weight of so many MiB."""
        return self.op((x, self.tensor(weight, persistent=True)), mib, seconds, **how)

    def _call(self, op: str, inputs: tuple[int, ...], outputs: tuple[int, ...], ways: tuple[Algorithm, ...]) -> None:
        self._rows.append((op, inputs, outputs, ways))

    def trace(self, *losses: int, data: Sequence[int] = ()) -> Trace:
        """The step: gradients of the losses, and an update of each weight."""
        gradient: dict[int, int] = {}
        for loss in losses:
            gradient[loss] = self.tensor(self.sizes[loss] / MIB)
            self._call("loss", (loss,), (gradient[loss],), (Algorithm("", 1e-5),))
        for inputs, output, seconds, reads_inputs, ways in reversed(self._forward):
            if output not in gradient:
                continue
            for source in dict.fromkeys(i for i in inputs if i not in data):
                made = self.tensor(self.sizes[source] / MIB)
                self._call("backward", (gradient[output], *(inputs if reads_inputs else (output,))), (made,), ways)
                if source in gradient:
                    total = self.tensor(self.sizes[source] / MIB)
                    self._call("add", (gradient[source], made), (total,), (Algorithm("", seconds / 10),))
                    made = total
                gradient[source] = made
        for weight in sorted(self._persistent):
            if weight in gradient:
                self._call("update", (weight, gradient[weight]), (), (Algorithm("", 1e-5),))
        last = {t: n for n, (_, inputs, outputs, _) in enumerate(self._rows) for t in (*inputs, *outputs)}
        frees: list[list[int]] = [[] for _ in self._rows]
        for t, n in last.items():
            if t not in self._persistent:
                frees[n].append(t)
        calls = tuple(TraceCall(op, inputs, outputs, ways[0].seconds, ways, tuple(frees[n]),
                                writes=inputs[:1] if op == "update" else ())
                      for n, (op, inputs, outputs, ways) in enumerate(self._rows))
        used = sorted(last)
        return Trace(calls, {t: TraceTensor(t, self.sizes[t], t in self._persistent) for t in used})


def transformer(seed: int, blocks: int = 8) -> Trace:
    """Attention and a wide layer, each with its shortcut."""
    step = Step(seed)
    x = data = step.tensor(16)
    for _ in range(blocks):
        n = step.op((x,), 16, 2e-4)
        q, k, v = (step.layer(n, 16, 2e-3, 4) for _ in range(3))
        weights = step.op((step.op((q, k), 48, 1.5e-3),), 48, 5e-4, reads_inputs=False)
        x = step.op((x, step.layer(step.op((weights, v), 16, 1.5e-3), 16, 2e-3, 4)), 16, 2e-4)
        wide = step.op((step.layer(step.op((x,), 16, 2e-4), 64, 8e-3, 16),), 64, 8e-4)
        x = step.op((x, step.layer(wide, 16, 8e-3, 16)), 16, 2e-4)
    return step.trace(x, data=(data,))


def u_net(seed: int, depth: int = 4) -> Trace:
    """Halves on the way down, doubles on the way up, and joins what had the same size."""
    step = Step(seed)
    x = data = step.tensor(16)
    down = []
    for level in range(depth):
        mib = 128 / 2**level
        for _ in range(2):
            x = step.op((step.layer(x, mib, 6e-3, 0.5 * 4**level / 4),), mib, 4e-4, reads_inputs=False)
        down.append(x)
        x = step.op((x,), mib / 4, 3e-4)
    for level in reversed(range(depth)):
        mib = 128 / 2**level
        x = step.op((step.layer(x, mib, 3e-3, 1), down[level]), 2 * mib, 5e-4)
        for _ in range(2):
            x = step.op((step.layer(x, mib, 6e-3, 1),), mib, 4e-4, reads_inputs=False)
    return step.trace(x, data=(data,))


def vgg(seed: int) -> Trace:
    """Convolutions of which each has a time and a workspace for each algorithm, and wide linear layers."""
    step = Step(seed)
    x = data = step.tensor(8)
    for mib, count in ((128, 2), (64, 2), (32, 3), (16, 3), (4, 3)):
        for _ in range(count):
            table = ((1.0, 2.5 * mib), (1.2, 0.6 * mib), (1.7, 1), (2.4, 0))
            x = step.op((step.layer(x, mib, 1e-2, 2, table=table),), mib, 5e-4, reads_inputs=False)
        x = step.op((x,), mib / 4, 3e-4)
    for weight in (200, 64, 16):
        x = step.layer(x, 1, 2e-3, weight)
    return step.trace(x, data=(data,))


def recurrent(seed: int, steps: int = 30) -> Trace:
    """One cell again and again, of few bytes and many calls."""
    step = Step(seed)
    weight = step.tensor(8, persistent=True)
    state = step.tensor(2)
    data = [step.tensor(2) for _ in range(steps)]
    for x in data:
        gates = step.op((step.op((x, state, weight), 8, 1e-3),), 8, 1e-4, reads_inputs=False)
        state = step.op((gates, state), 2, 1e-4)
    return step.trace(state, data=(*data,))


def tree(seed: int, leaves: int = 32) -> Trace:
    """Pairs are joined, in an uneven tree, by one weight."""
    step = Step(seed)
    weight = step.tensor(4, persistent=True)
    data = [step.tensor(4) for _ in range(leaves)]
    nodes = [step.op((x,), 4, 2e-4) for x in data]
    while len(nodes) > 1:
        at = step.draw.randrange(len(nodes) - 1)
        nodes[at:at + 2] = [step.op((step.op((nodes[at], nodes[at + 1], weight), 8, 1e-3),), 4, 2e-4)]
    return step.trace(nodes[0], data=data)


def gan(seed: int) -> Trace:
    """A generator, and a judge that sees what is made and what is real with the same weights."""
    step = Step(seed)
    x = data = step.tensor(1)
    for mib in (4, 16, 64):
        x = step.op((step.layer(x, mib, 4e-3, 4),), mib, 3e-4, reads_inputs=False)
    real = step.tensor(64)
    weights = [step.tensor(4, persistent=True) for _ in range(4)]
    ends = []
    for seen in (real, x):
        for mib, weight in zip((64, 32, 8, 2), weights, strict=True):
            seen = step.op((step.op((seen, weight), mib, 5e-3),), mib, 3e-4, reads_inputs=False)
        ends.append(seen)
    return step.trace(*ends, data=(data, real))


def dense(seed: int, layers: int = 23, joins: int = 8) -> Trace:
    """A chain of convolutions that several concatenations join, each with all values so far: after them the chain is
    free, and the gradients want the concatenations."""
    step = Step(seed)
    x = data = step.tensor(4)
    weight = step.tensor(1, persistent=True)
    chain = []
    for _ in range(layers):
        x = step.op((x,), 4, 1e-3, reads_inputs=False)
        chain.append(x)
    ends = [step.op((step.op(chain, 4 * len(chain), 3e-4, reads_inputs=False), weight), 4, 1e-3) for _ in range(joins)]
    while len(ends) > 1:
        ends[:2] = [step.op(ends[:2], 4, 1e-4, reads_inputs=False)]
    return step.trace(ends[0], data=(data,))


def tables(seed: int, blocks: int = 6) -> Trace:
    """A transformer whose products have a time and a workspace for each algorithm."""
    step = Step(seed)
    x = data = step.tensor(16)
    table = ((1.0, 40), (1.15, 12), (1.5, 0))
    for _ in range(blocks):
        n = step.op((x,), 16, 2e-4)
        q, k, v = (step.layer(n, 16, 2e-3, 4, table=table) for _ in range(3))
        weights = step.op((step.op((q, k), 64, 1.5e-3, table=((1.0, 64), (2.0, 0))),), 64, 5e-4, reads_inputs=False)
        x = step.op((x, step.layer(step.op((weights, v), 16, 1.5e-3), 16, 2e-3, 4, table=table)), 16, 2e-4)
        wide = step.op((step.layer(x, 64, 8e-3, 16, table=table),), 64, 8e-4, reads_inputs=False)
        x = step.op((x, step.layer(wide, 16, 8e-3, 16, table=table)), 16, 2e-4)
    return step.trace(x, data=(data,))


def experts(seed: int, blocks: int = 4, count: int = 6) -> Trace:
    """A mixture of experts: each block divides its input among experts of unequal shares, and joins what they make."""
    step = Step(seed)
    x = data = step.tensor(24)
    for _ in range(blocks):
        gate = step.layer(x, 1, 2e-4, 1)
        shares = [step.draw.uniform(0.2, 1.8) / count for _ in range(count)]
        made = []
        for share in shares:
            part = step.op((x, gate), 24 * share, 1e-4)
            wide = step.op((step.layer(part, 96 * share, 6e-3 * share, 12),), 96 * share, 6e-4 * share)
            made.append(step.layer(wide, 24 * share, 6e-3 * share, 12))
        x = step.op((x, *made), 24, 3e-4, reads_inputs=False)
    return step.trace(x, data=(data,))


def towers(seed: int, layers: int = 8) -> Trace:
    """Two encoders of unequal width that meet in one product, as images and texts do."""
    step = Step(seed)
    data, ends = [], []
    for mib, seconds in ((32, 5e-3), (12, 1e-3)):
        x = step.tensor(mib)
        data.append(x)
        for _ in range(layers):
            x = step.op((x, step.op((step.layer(x, 2 * mib, seconds, 6),), 2 * mib, 3e-4, reads_inputs=False)), mib,
                        seconds / 2)
        ends.append(x)
    return step.trace(step.op(ends, 8, 1e-3), data=data)


def residual(seed: int, blocks: int = 12) -> Trace:
    """Bottlenecks with shortcuts, whose convolutions have a time and a workspace for each algorithm."""
    step = Step(seed)
    x = data = step.tensor(48)
    for block in range(blocks):
        mib = 48 / 2 ** (block * 3 // blocks)
        table = ((1.0, 1.5 * mib), (1.3, 0.25 * mib), (1.9, 0))
        inner = x
        for part, seconds in ((mib / 4, 2e-3), (mib / 4, 5e-3), (mib, 2e-3)):
            normed = step.op((step.layer(inner, part, seconds, 1, table=table),), part, 2e-4)
            inner = step.op((normed,), part, 2e-4, reads_inputs=False)
        shortcut = x if step.sizes[x] > 0.7 * mib * MIB and block % (blocks // 3) else step.layer(x, mib, 1e-3, 1)
        x = step.op((inner, shortcut), mib, 3e-4, reads_inputs=False)
    return step.trace(x, data=(data,))


def pyramid(seed: int, depth: int = 4) -> Trace:
    """A detector: features on several scales, each joined with the next coarser one, and a loss on each."""
    step = Step(seed)
    x = data = step.tensor(24)
    scales = []
    for level in range(depth):
        mib = 96 / 3**level
        for _ in range(3):
            x = step.op((step.layer(x, mib, 5e-3, 2),), mib, 3e-4, reads_inputs=False)
        scales.append((x, mib))
        x = step.op((x,), mib / 3, 2e-4)
    ends = []
    above = x
    for features, mib in reversed(scales):
        above = step.op((step.layer(features, mib / 2, 1e-3, 1), above), mib / 2, 4e-4)
        ends += [step.layer(step.op((step.layer(above, mib / 2, 4e-3, 1),), mib / 2, 2e-4, reads_inputs=False), 1, 1e-3,
                            1) for _ in range(2)]
    return step.trace(*ends, data=(data,))


STRANGERS = {"transformer": transformer, "u-net": u_net, "vgg": vgg, "recurrent": recurrent, "tree": tree, "gan": gan,
             "dense": dense, "tables": tables, "experts": experts, "towers": towers, "residual": residual,
             "pyramid": pyramid}
