"""One case of an operation: shapes of its operands, attributes, and the formula of its results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidl import ops
from minidl.op import Op

MODULES = (ops.attention, ops.batchnorm, ops.choose, ops.conv, ops.elementwise, ops.embedding,
           ops.functions, ops.layernorm, ops.library, ops.linear, ops.loss, ops.parts, ops.pool, ops.ranking,
           ops.recurrent, ops.shape, ops.update)
OPS = {op.name: op for module in MODULES for op in vars(module).values() if isinstance(op, Op)}
# Operands that are float32 where the others are halves (minidl.meta.wide), by the names that operations give them.
WIDE = {"gamma", "beta", "mean", "var", "rstd", "dgamma", "dbeta", "running_mean", "running_var", "dloss", "lse",
        "other_mean", "other_var", "value"}
WIDE_OF = {"linear": {"b"}, "conv2d": {"b"}, "conv2d_relu": {"b"},
           "lstm": {"b"}, "gru": {"b"}}


@dataclass(frozen=True)
class Case:
    """One call of an operation: its inputs by their shapes, its attributes, and the formula of its outputs.

    A prefix of a shape says which values: "+" positive numbers; "i<n>" integers below n; "g<n>" labels, which are
    integers below n, every third of them -100 (ignored); "b" booleans; none: any numbers.
    """

    name: str
    shapes: tuple[Any, ...]
    reference: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)

    def inputs(self, dtype: str, seed: int = 7) -> list[np.ndarray[Any, Any]]:
        """Make random inputs in a dtype.
        Integers keep theirs, and so do operands that stay float32 beside 16-bit floats."""
        rng = np.random.default_rng(seed)
        result = []
        names, wide = OPS[self.name].inputs, WIDE | WIDE_OF.get(self.name, set())
        for i, spec in enumerate(self.shapes):
            kind, shape = spec if spec and isinstance(spec[0], str) else ("", spec)
            if kind == "b":
                result.append(rng.integers(0, 2, shape).astype(bool))
            elif kind.startswith("g"):
                labels = rng.integers(0, int(kind[1:]), shape)
                labels[::3] = -100
                result.append(labels)
            elif kind.startswith("i"):
                result.append(rng.integers(0, int(kind[1:]), shape).astype("uint8" if self.name.endswith("grad")
                                           and "pool" in self.name else "int64"))
            else:
                values = rng.uniform(0.2, 2, shape) if kind == "+" else rng.standard_normal(shape)
                beside_halves = np.dtype(dtype).itemsize == 2 and i < len(names) and names[i] in wide
                result.append(np.asarray(values, "float32" if beside_halves else dtype))
        return result

    def __str__(self) -> str:
        return f"{self.name}-{'-'.join('x'.join(map(str, s)) for s in self.shapes)}"
