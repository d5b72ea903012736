"""Optimizer steps over many parameters, in place, by one launch for all tensors of equal dtypes.

A table, uploaded, tells where each parameter's tensors are and which thread block is its first; a block finds its
parameter by bisection. A group is all parameters, all tensors of one state, or all gradients; offsets count from its
lowest address. Tensors with different layouts are copied first, and the written ones copied back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.launch import (
    WORKSPACE, DeviceFunction, Kernel, Launch, Launcher, Launches, Number, Pointer, PreparedLaunches, View, blocks_of,
    compute, resolved, view,
)
from minidl.kernels.cuda.layout import is_dense, merged
from minidl.kernels.cuda.shape import copy
from minidl.kernels.cuda.tools import Tools
from minidl.meta import Meta

ITEMS = 8  # elements of a thread, which share one search for their parameter


# Device functions ---------------------------------------------------------------------------------------------------
def _search(tools: Tools, threads: int) -> Callable[..., Any]:
    """Return ``search(table, n)`` -> the number of the parameter that this thread updates, its first element, its size.

    table, of n parameters: their first thread blocks, their sizes, then for each group (see above) their offsets.
    """
    cuda = tools.cuda

    def search(table: Any, n: Any) -> Any:
        block = np.int64(cuda.blockIdx.x)
        low, high = np.int64(0), n
        while high - low > 1:
            middle = (low + high) // 2
            if table[middle] <= block:
                low = middle
            else:
                high = middle
        return low, (block - table[low]) * (threads * ITEMS) + cuda.threadIdx.x, table[n + low]
    return tools.device(search)


def sgd_step(tools: Tools, *, dtypes: tuple[str, ...], threads: int) -> Callable[..., None]:
    """Return a kernel: p -= lr (g + weight_decay p), for many parameters."""
    search, sgd, number = _search(tools, threads), tools.scalar(dtypes[0]).sgd, tools.number(dtypes[0])
    (load_p, store_p), (load_g, _) = map(tools.memory, dtypes)

    def kernel(p: Any, g: Any, table: Any, n: Any, lr: Any, weight_decay: Any) -> None:
        which, first, size = search(table, n)
        p_at, g_at = table[2 * n + which], table[3 * n + which]
        for k in range(ITEMS):
            i = first + k * threads
            if i < size:
                store_p(p, p_at + i, sgd(load_p(p, p_at + i), number(load_g(g, g_at + i)), lr, weight_decay))
    return kernel


def momentum_step(tools: Tools, *, dtypes: tuple[str, ...], begins: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: buffer = momentum buffer + d (just d if ``begins``), d = g + weight_decay p; p -= lr buffer."""
    search, step, number = _search(tools, threads), tools.scalar(dtypes[0]).sgd_momentum, tools.number(dtypes[0])
    (load_p, store_p), (load_b, store_b), (load_g, _) = map(tools.memory, dtypes)

    def kernel(p: Any, b: Any, g: Any, table: Any, n: Any, lr: Any, momentum: Any, weight_decay: Any) -> None:
        which, first, size = search(table, n)
        p_at, b_at, g_at = table[2 * n + which], table[3 * n + which], table[4 * n + which]
        for k in range(ITEMS):
            i = first + k * threads
            if i < size:
                velocity = number(0)
                if not begins:
                    velocity = number(load_b(b, b_at + i))
                value, velocity = step(load_p(p, p_at + i), velocity, number(load_g(g, g_at + i)), lr, momentum,
                                       weight_decay)
                store_p(p, p_at + i, value)
                store_b(b, b_at + i, velocity)
    return kernel


def adam_step(tools: Tools, *, dtypes: tuple[str, ...], threads: int) -> Callable[..., None]:
    """Return a kernel: a step of Adam (Kingma & Ba 2015, algorithm 1). Its numbers are those of ``_adam_numbers``."""
    search, adam, number = _search(tools, threads), tools.scalar(dtypes[0]).adam, tools.number(dtypes[0])
    (load_p, store_p), (load_m, store_m), (load_v, store_v), (load_g, _) = map(tools.memory, dtypes)

    def kernel(p: Any, m: Any, v: Any, g: Any, table: Any, n: Any, step_size: Any, beta1: Any, rest1: Any,
               beta2: Any, rest2: Any, eps: Any, correction: Any, l2: Any, shrink: Any) -> None:
        which, first, size = search(table, n)
        p_at, m_at = table[2 * n + which], table[3 * n + which]
        v_at, g_at = table[4 * n + which], table[5 * n + which]
        for k in range(ITEMS):
            i = first + k * threads
            if i < size:
                value, first_moment, second_moment = adam(
                    load_p(p, p_at + i), number(load_m(m, m_at + i)), number(load_v(v, v_at + i)),
                    number(load_g(g, g_at + i)), step_size, beta1, rest1, beta2, rest2, eps, correction, l2, shrink)
                store_p(p, p_at + i, value)
                store_m(m, m_at + i, first_moment)
                store_v(v, v_at + i, second_moment)
    return kernel


def adadelta_step(tools: Tools, *, dtypes: tuple[str, ...], threads: int) -> Callable[..., None]:
    """Return a kernel: a step of Adadelta (Zeiler 2012, algorithm 1)."""
    search, step, number = _search(tools, threads), tools.scalar(dtypes[0]).adadelta, tools.number(dtypes[0])
    (load_p, store_p), (load_v, store_v), (load_u, store_u), (load_g, _) = map(tools.memory, dtypes)

    def kernel(p: Any, v: Any, u: Any, g: Any, table: Any, n: Any, lr: Any, rho: Any, rest: Any, eps: Any,
               weight_decay: Any) -> None:
        which, first, size = search(table, n)
        p_at, v_at = table[2 * n + which], table[3 * n + which]
        u_at, g_at = table[4 * n + which], table[5 * n + which]
        for k in range(ITEMS):
            i = first + k * threads
            if i < size:
                value, squares, steps = step(load_p(p, p_at + i), number(load_v(v, v_at + i)),
                                             number(load_u(u, u_at + i)), number(load_g(g, g_at + i)), lr, rho, rest,
                                             eps, weight_decay)
                store_p(p, p_at + i, value)
                store_v(v, v_at + i, squares)
                store_u(u, u_at + i, steps)
    return kernel


# Steps --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ParameterGroup:
    """Parameters whose tensors have the same dtypes, so that one ``launch`` updates all of them.

    operands, offsets   operand numbers and offsets of the tensors, a row per group of them
    itemsizes           for each group: bytes per element
    spans               the part of the table that does not depend on addresses (see ``_search``)
    table               the table's place in the workspace
    """

    launch: Launch
    operands: np.ndarray
    offsets: np.ndarray
    itemsizes: np.ndarray
    spans: np.ndarray
    table: Pointer


@dataclass(frozen=True)
class PreparedStep(PreparedLaunches):
    """The prepared launches of an optimizer step, in three parts.
    before: copies of strided tensors. batches: updates. launches: copies back."""

    before: tuple[Launch, ...]
    batches: tuple[ParameterGroup, ...]

    @property
    def constant(self) -> bool:
        return False

    @property
    def sources(self) -> tuple[DeviceFunction, ...]:
        batches = tuple(batch.launch for batch in self.batches)
        return tuple(launch.source for launch in (*self.before, *batches, *self.launches))


class OptimizerStepKernel(Kernel):
    """The kernel of an optimizer step; parameters with the same dtypes are updated by one launch.
    Its operands are all parameters, then all tensors of each kind of state, then all gradients."""

    def __init__(self, make: Callable[..., Any], groups: int, names: tuple[str, ...], numbers: Callable[..., Any], *,
                 once: str = "") -> None:
        """make: returns the device function; groups: how many groups of operands (parameters, ...) there are.
        names: the numbers that the kernel takes, first to last; numbers: returns their values for a call's attributes.
        once: the attribute that is true in the first step, when the state has no values yet ("": none)."""
        super().__init__(lambda *_: None, numbers)
        self._make, self._groups, self._names, self._once = make, groups, names, once

    def prepare(self, metas: Sequence[Meta], attrs: dict[str, Any]) -> PreparedStep:
        begins = bool(attrs.get(self._once)) if self._once else False
        key = (*metas, begins)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._prepare_step(metas, {"begins": begins} if self._once else {})
        assert isinstance(prepared, PreparedStep)
        return prepared

    def _prepare_step(self, metas: Sequence[Meta], options: dict[str, Any]) -> PreparedStep:
        builder, n = Launches(), len(metas) // self._groups
        staged: list[tuple[View, View]] = []
        together: dict[tuple[str, ...], list[list[View]]] = {}
        for i in range(n):
            members = [view(j, metas[j]) for j in range(i, len(metas), n)]
            if not is_dense(merged(members[0].shape, *[a.strides for a in members])):
                flat = [builder.scratch(a.shape, a.dtype.name) for a in members]
                for to, origin in zip(flat, members, strict=True):
                    copy(builder, to, origin)
                staged += zip(members[:-1], flat[:-1], strict=True)
                members = flat
            if members[0].size:
                together.setdefault(tuple(a.dtype.name for a in members), []).append(members)
        before, builder.launches = tuple(builder.launches), []
        batches = [self._batch(builder, dtypes, several, options) for dtypes, several in together.items()]
        builder.launches = []
        for to, origin in staged:
            copy(builder, to, origin)
        return PreparedStep(tuple(builder.launches), builder.workspace, before, tuple(batches))

    def _batch(self, builder: Launches, dtypes: tuple[str, ...], several: list[list[View]],
               options: dict[str, Any]) -> ParameterGroup:
        n, each = len(several), launch.THREADS * ITEMS
        table = builder.scratch(((2 + self._groups) * n,), "int64")
        kind = compute(several[0][0].dtype)
        builder.launch(self._make, sum(blocks_of(m[0].size, each) for m in several), *several[0], table, np.int64(n),
                       *[Number(name, kind) for name in self._names], dtypes=dtypes, **options)
        pointers = [[m[g].pointer for m in several] for g in range(self._groups)]
        sizes = np.array([m[0].size for m in several])
        counts = -(-sizes // each)
        return ParameterGroup(builder.launches[-1], np.array([[p.operand for p in group] for group in pointers]),
                     np.array([[p.offset for p in group] for group in pointers]),
                     np.array([[a.dtype.itemsize] for a in several[0]]),
                     np.concatenate([np.cumsum(counts) - counts, sizes]), table.pointer)

    def issue(self, launcher: Launcher, addresses: Sequence[int], metas: Sequence[Meta], attrs: dict[str, Any],
              workspace: int = 0) -> None:
        numbers, prepared, places = self.numbers(attrs), self.prepare(metas, attrs), (*addresses, workspace)

        def issue(launches: Sequence[Launch]) -> None:
            for each in launches:
                launcher.launch(each.source, each.blocks, [resolved(a, places, numbers) for a in each.arguments])
        issue(prepared.before)
        starts = np.array(places)
        for batch in prepared.batches:
            bases, table = _table(batch, starts)
            launcher.upload(places[WORKSPACE] + batch.table.offset, table)
            rest = [resolved(a, places, numbers) for a in batch.launch.arguments[len(bases):]]
            launcher.launch(batch.launch.source, batch.launch.blocks, [*bases, *rest])
        issue(prepared.launches)


def _table(batch: ParameterGroup, starts: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Return each group's lowest address, and the table that ``_search`` reads. starts: the address of each operand."""
    addresses = starts[batch.operands] + batch.offsets
    bases = addresses.min(axis=1, keepdims=True)
    offsets = (addresses - bases) // batch.itemsizes
    return bases[:, 0].tolist(), np.concatenate([batch.spans, offsets.reshape(-1)])


def _adam_numbers(lr: float, beta1: float, beta2: float, eps: float, step: int, weight_decay: float = 0.0,
                  decoupled: bool = False) -> dict[str, float]:
    """Return the arguments of ``adam_step``; ``step`` counts from 1.

    The decay is L2, or if ``decoupled`` a factor (AdamW: Loshchilov & Hutter 2019).
    """
    l2, shrink = (0.0, 1.0 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    return {"step_size": lr / (1.0 - beta1**step), "beta1": beta1, "rest1": 1.0 - beta1, "beta2": beta2,
            "rest2": 1.0 - beta2, "eps": eps, "correction": (1.0 - beta2**step) ** 0.5, "l2": l2, "shrink": shrink}


KERNELS: dict[str, Kernel] = {
    "sgd_": OptimizerStepKernel(sgd_step, 2, ("lr", "weight_decay"),
                 lambda lr, weight_decay=0.0: {"lr": lr, "weight_decay": weight_decay}),
    "sgd_momentum_": OptimizerStepKernel(momentum_step, 3, ("lr", "momentum", "weight_decay"), once="first",
                          numbers=lambda lr, momentum, weight_decay=0.0: {
                              "lr": lr, "momentum": momentum, "weight_decay": weight_decay}),
    "adam_": OptimizerStepKernel(adam_step, 4, ("step_size", "beta1", "rest1", "beta2", "rest2", "eps", "correction",
                                                "l2",
                                "shrink"), _adam_numbers),
    "adadelta_": OptimizerStepKernel(adadelta_step, 4, ("lr", "rho", "rest", "eps", "weight_decay"),
                      lambda lr, rho, eps, weight_decay=0.0: {"lr": lr, "rho": rho, "rest": 1.0 - rho, "eps": eps,
                                                              "weight_decay": weight_decay}),
}
