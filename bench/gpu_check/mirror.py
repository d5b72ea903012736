"""A network's forward pass in PyTorch, operation by operation as minidl called them, so that every network has a peer.

``Tape`` notes the operations that a forward pass runs. ``play`` runs them again in PyTorch, in float64 or float32, and
PyTorch computes the gradients. So the whole backward pass is compared with PyTorch's own.

Kinks: the side that each ReLU and maximum took is noted with the operation, and ``play`` uses it, because a value
within rounding of zero has two right gradients. Dropout's masks are noted too. Knows operations by name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from minidl.context import current
from minidl.meta import float32
from minidl.op import Op
from minidl.ops.elementwise import DROPOUT
from minidl.ops.update import UPLOAD
from minidl.tensor import Tensor

Formula = Callable[[Any, Any, Any, Any], Any]  # (tensors, attributes, side, (dtype, device)) -> tensor, or several


@dataclass(frozen=True)
class Note:
    """One operation of a tape: its inputs and outputs by number, and for a ReLU or a maximum the sides that it took."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]
    side: np.ndarray | None


class Tape:
    """The operations of a forward pass in order, and the values that came from outside of it (``leaves``)."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.leaves: dict[int, np.ndarray] = {}
        self.numbers: dict[Any, int] = {}  # of storages, which are held, so that they stay themselves
        self._fresh = count()

    def number(self, storage: Any) -> int:
        """Return the number of a storage's present value; a write in place gives the storage a new number."""
        if storage not in self.numbers:
            self.numbers[storage] = next(self._fresh)
        return self.numbers[storage]

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Return a context in which every operation that runs is added to the tape."""
        executor = current()
        run = executor.run

        def noted(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], donated: int = 0) -> tuple[Any, ...]:
            if op.mutates is not None:
                for index in op.mutates(len(inputs)):
                    self.numbers.pop(inputs[index], None)
                return run(op, inputs, attrs, donated)
            for storage in inputs:
                if storage not in self.numbers:
                    self.leaves[self.number(storage)] = executor.read(storage)
            outputs = run(op, inputs, attrs, donated)
            if attrs.get("data", 0) is not None:  # else it has no value yet
                self.notes.append(Note(op.name, tuple(map(self.number, inputs)), tuple(map(self.number, outputs)),
                                       dict(attrs), _side(op, outputs, attrs, run)))
            return outputs
        executor.run = noted  # type: ignore[method-assign]
        try:
            yield
        finally:
            del executor.run

    def play(self, loss: Tensor, wanted: dict[str, Tensor], dtype: torch.dtype, where: str) -> dict[str, np.ndarray]:
        """Run the tape in PyTorch; return the loss, and its gradients with respect to ``wanted``, by name, in float64.
        """
        made: dict[int, Any] = {}
        sources = {self.numbers[t.storage]: name for name, t in wanted.items() if t.storage in self.numbers}
        leaves = {}
        for number, value in self.leaves.items():
            tensor = torch.from_numpy(np.ascontiguousarray(_plain(value))).to(where)
            tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor.long()
            made[number] = leaves[number] = tensor.requires_grad_(number in sources)
        for note in self.notes:
            result = FORMULAS[note.op]([made[i] for i in note.inputs], note.attrs,
                                       None if note.side is None else torch.from_numpy(note.side).to(where),
                                       (dtype, where))
            made.update(zip(note.outputs, result if isinstance(result, tuple) else (result,), strict=False))
        value = made[self.numbers[loss.storage]]
        value.backward()
        found = {name: leaves[number].grad for number, name in sources.items()}
        return {"loss": value.detach().double().cpu().numpy(),
                **{name: g.double().cpu().numpy() for name, g in found.items() if g is not None}}


def _plain(value: np.ndarray) -> np.ndarray:
    """Convert values to a dtype that PyTorch takes from NumPy."""
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


def _side(op: Op, outputs: Sequence[Any], attrs: dict[str, Any], run: Callable[..., Any]) -> np.ndarray | None:
    """Return the sides that an operation took if it has kinks, its mask if it is random, else None.

    run: the executor's function, as it was before the tape began to add to itself.
    """
    executor = current()
    if op.name.endswith("relu"):
        return np.asarray(executor.read(outputs[0]) > 0)
    if op.name == "compare_number":
        return np.asarray(executor.read(outputs[0]))
    if op.name == "max_pool2d":
        return executor.read(outputs[1]).astype(np.int64)
    if op is DROPOUT:
        shape = outputs[0].meta.shape
        (ones,) = run(UPLOAD, (), {"shape": shape, "dtype": float32, "data": np.ones(shape, np.float32)})
        (kept,) = map(Tensor, run(DROPOUT, (Tensor(ones).storage,), attrs))
        return kept.numpy()
    return None


# Formulas ---------------------------------------------------------------------------------------------------------
def _max_pool(x: torch.Tensor, in_window: torch.Tensor, *, kernel: Any, stride: Any, padding: Any) -> torch.Tensor:
    """Return the values at the places ``in_window``, each a number inside its window: max pooling with known maxima."""
    rows = torch.arange(in_window.shape[2], device=x.device) * stride[0] - padding[0]
    columns = torch.arange(in_window.shape[3], device=x.device) * stride[1] - padding[1]
    flat = (rows[:, None] + in_window // kernel[1]) * x.shape[3] + columns + in_window % kernel[1]
    return x.flatten(2).gather(2, flat.flatten(2)).view_as(in_window)


def _convolution(x: torch.Tensor, w: torch.Tensor, b: Any = None, **window: Any) -> torch.Tensor:
    return F.conv2d(x, w, b, **window)


def _transposed_convolution(tensors: Sequence[torch.Tensor], *, x_shape: Any, stride: Any, padding: Any,
                            groups: int) -> Any:
    dy, w, *onto = tensors
    extra = [x_shape[2 + i] - ((dy.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + w.shape[2 + i]) for i in (0, 1)]
    dx = F.conv_transpose2d(dy, w, None, stride, padding, extra, groups)
    return dx + onto[0] if onto else dx


def _line(x: torch.Tensor, gamma: Any, beta: Any, mean: Any, var: Any, *, eps: float) -> torch.Tensor:
    def wide(v: torch.Tensor) -> torch.Tensor:
        return v.view(-1, *(1,) * (x.ndim - 2))
    return (x - wide(mean)) * wide(torch.rsqrt(var + eps) * gamma) + wide(beta)


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    axes = [0, *range(2, x.ndim)]
    return x.mean(axes), x.var(axes, unbiased=False)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = 0.0, *, heads: int, causal: bool,
               p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(q k' / sqrt(D) + mask) v for each head, and the logarithm of each row's sum of exponentials."""
    if p:
        raise ValueError("which values a fused attention has dropped cannot be noted")
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) / q.shape[3]**0.5 + mask
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2), scores.logsumexp(-1)


def _layer_norm(x: torch.Tensor, gamma: Any, beta: Any, *, eps: float) -> tuple[torch.Tensor, ...]:
    mean, rstd = x.mean(-1), torch.rsqrt(x.var(-1, unbiased=False) + eps)
    return (x - mean[..., None]) * rstd[..., None] * gamma + beta, mean, rstd


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, ignore_index: int) -> tuple[Any, Any]:
    return F.cross_entropy(logits, labels, ignore_index=ignore_index), logits.softmax(-1)


def _share(part: torch.Tensor, labels: torch.Tensor, ignored: int) -> float:
    """Return which share of the labels that are not ignored lies in ``part``."""
    return float((part != ignored).sum() / (labels != ignored).sum())


def _cross_entropy_grad(dloss: torch.Tensor, residual: torch.Tensor, labels: torch.Tensor, *,
                        ignore_index: int) -> torch.Tensor:
    """Return the gradient with respect to the logits. residual: their softmax, as from ``_cross_entropy``."""
    counted = (labels != ignore_index)[:, None]
    right = F.one_hot(labels.where(counted[:, 0], 0), residual.shape[1])
    return (residual - right) * counted * dloss / counted.sum().clamp(min=1)


def _summed(x: torch.Tensor, shape: Any) -> torch.Tensor:
    wide = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = [i for i, n in enumerate(wide) if n == 1 != x.shape[i]]
    return (x.sum(axes, keepdim=True) if axes else x).reshape(shape)


def _uploaded(attrs: dict[str, Any], kind: Any) -> torch.Tensor:
    dtype, where = kind
    tensor = torch.from_numpy(np.array(_plain(np.asarray(attrs["data"])))).to(where)
    return tensor.to(dtype) if attrs["dtype"].floating else tensor.long()


def _swapped(x: torch.Tensor, flag: bool) -> torch.Tensor:
    return x.swapaxes(-1, -2) if flag else x


def _by(function: Callable[..., Any]) -> Formula:
    """Make a formula of a function that needs none of the operation's attributes."""
    return lambda tensors, attrs, side, kind: function(*tensors)


FORMULAS: dict[str, Formula] = {
    "upload": lambda t, a, side, kind: _uploaded(a, kind),
    "full": lambda t, a, side, kind: torch.full(
        a["shape"], a["value"], dtype=kind[0] if a["dtype"].floating else torch.long, device=kind[1]),
    "add": _by(torch.add), "sub": _by(torch.sub), "mul": _by(torch.mul), "div": _by(torch.div), "neg": _by(torch.neg),
    "exp": _by(torch.exp), "log": _by(torch.log), "sqrt": _by(torch.sqrt), "tanh": _by(torch.tanh),
    "sigmoid": _by(torch.sigmoid), "gelu": _by(F.gelu), "gelu_tanh": _by(lambda x: F.gelu(x, approximate="tanh")),
    "silu": _by(F.silu),
    "contiguous": _by(lambda x: x), "cast": _by(lambda x: x), "detach": _by(lambda x: x.detach()),
    "convert": lambda t, a, side, kind: t[0].to(kind[0]) if a["dtype"].floating else t[0].long(),
    "scale": lambda t, a, side, kind: t[0] * a["value"], "shift": lambda t, a, side, kind: t[0] + a["value"],
    "relu": lambda t, a, side, kind: t[0] * side, "dropout": lambda t, a, side, kind: t[0] * side,
    "compare_number": lambda t, a, side, kind: side,
    "masked_fill": lambda t, a, side, kind: t[0].masked_fill(t[1].bool() ^ a["inverted"], a["value"]),
    "sum_to": lambda t, a, side, kind: _summed(t[0], a["shape"]),
    "expand": lambda t, a, side, kind: t[0].expand(a["shape"]),
    "reshape": lambda t, a, side, kind: t[0].reshape(a["shape"]),
    "permute": lambda t, a, side, kind: t[0].permute(a["axes"]),
    "index": lambda t, a, side, kind: t[0][tuple(slice(*part) if isinstance(part, tuple) and part else
                                                 slice(None) if part == () else part for part in a["parts"])],
    "narrow": lambda t, a, side, kind: t[0].narrow(a["axis"], a["start"], a["stop"] - a["start"]),
    "concat": lambda t, a, side, kind: torch.cat(list(t), a["axis"]),
    "linear": _by(F.linear),
    "matmul": lambda t, a, side, kind: _swapped(t[0], a["transpose_a"]) @ _swapped(t[1], a["transpose_b"]),
    "conv2d": lambda t, a, side, kind: _convolution(*t, **a),
    "conv2d_relu": lambda t, a, side, kind: _convolution(*t, **a) * side,
    "conv2d_dgrad": lambda t, a, side, kind: _transposed_convolution(t, **a),
    "max_pool2d": lambda t, a, side, kind: (_max_pool(t[0], side, **a), side),
    "avg_pool2d": lambda t, a, side, kind: F.avg_pool2d(t[0], a["kernel"], a["stride"], a["padding"]),
    "adaptive_avg_pool2d": lambda t, a, side, kind: F.adaptive_avg_pool2d(t[0], a["size"]),
    "batch_norm_stats": _by(_statistics),
    "batch_norm": lambda t, a, side, kind: _line(*t, eps=a["eps"]),
    "batch_norm_relu": lambda t, a, side, kind: _line(*t, eps=a["eps"]) * side,
    "batch_norm_add_relu": lambda t, a, side, kind: (_line(t[0], *t[2:], eps=a["eps"]) + t[1]) * side,
    "layer_norm": lambda t, a, side, kind: _layer_norm(*t, eps=a["eps"]),
    "scaled_dot_product_attention": lambda t, a, side, kind: _attention(*t, **a),
    "softmax": lambda t, a, side, kind: torch.softmax(t[0] + t[1] if len(t) > 1 else t[0], -1),
    "embedding": _by(lambda w, ids: F.embedding(ids, w)),
    "gather_rows": _by(lambda x, at: x.gather(1, at[..., None].expand(-1, -1, x.shape[2])).flatten(0, 1)),
    "label_share": lambda t, a, side, kind: t[0] * _share(t[1], t[2], a.get("ignore_index", -100)),
    "cross_entropy_grad": lambda t, a, side, kind: _cross_entropy_grad(*t, ignore_index=a.get("ignore_index", -100)),
    "linear_dgrad": _by(torch.matmul), "linear_wgrad": _by(lambda dy, x: dy.flatten(0, -2).T @ x.flatten(0, -2)),
    "known_gradients": lambda t, a, side, kind: t[0],  # PyTorch computes its own
    "cross_entropy": lambda t, a, side, kind: _cross_entropy(*t, ignore_index=a.get("ignore_index", -100)),
}
