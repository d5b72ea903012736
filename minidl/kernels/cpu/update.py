"""Optimizer steps, fills, uploads and random numbers, in place.

A step over many parameters is one kernel call: the parameters are cut into pieces of CHUNK elements, and the kernel
gets the address of each piece in every group of tensors (the parameters, each kind of state, the gradients).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numba import carray, prange
from numba.core import types
from numba.extending import intrinsic

from minidl.kernels import scalar
from minidl.kernels.cpu import elementwise
from minidl.kernels.cpu.blocks import Array, blocks, is_plain, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled
from minidl.kernels.cpu.half import is_half
from minidl.kernels.cpu.shape import copy

CHUNK = 1 << 14  # elements


@intrinsic
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Return an address as a pointer to elements of the type of the array ``like``."""
    result = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(result))
    return result(address, like), generate


@compiled
def _part(pieces: Array, sizes: Array, like: Array, group: int, piece: int) -> Any:
    """Return one piece of a tensor of ``group`` as an array with the dtype of ``like``. pieces: the addresses."""
    return carray(_pointer(pieces[group, piece], like), sizes[piece])  # type: ignore[call-arg] # no typing_context here


# Steps --------------------------------------------------------------------------------------------------------------
# pieces: [groups, P], addresses; sizes: [P], elements; like: an array of the tensors' type.
@PieceLoop
def _sgd(pieces: Array, sizes: Array, like: Array, lr: float, weight_decay: float) -> None:
    rate, decay = like.dtype.type(lr), like.dtype.type(weight_decay)
    for piece in prange(sizes.size):
        p, g = _part(pieces, sizes, like, 0, piece), _part(pieces, sizes, like, 1, piece)
        for i in range(p.size):
            p[i] = scalar.sgd(p[i], g[i], rate, decay)


@PieceLoop
def _sgd_momentum(pieces: Array, sizes: Array, like: Array, lr: float, momentum: float, weight_decay: float,
                  first: bool) -> None:
    kind = like.dtype.type
    rate, keep, decay = kind(lr), kind(momentum), kind(weight_decay)
    for piece in prange(sizes.size):
        p, buffer = _part(pieces, sizes, like, 0, piece), _part(pieces, sizes, like, 1, piece)
        g = _part(pieces, sizes, like, 2, piece)
        if first:
            buffer[:] = 0  # its old contents are arbitrary, perhaps NaN
        for i in range(p.size):
            p[i], buffer[i] = scalar.sgd_momentum(p[i], buffer[i], g[i], rate, keep, decay)


@PieceLoop
def _adam(pieces: Array, sizes: Array, like: Array, numbers: Array) -> None:
    kind = like.dtype.type
    step_size, beta1, rest1, beta2, rest2 = (kind(numbers[0]), kind(numbers[1]), kind(numbers[2]), kind(numbers[3]),
                                             kind(numbers[4]))
    eps, correction, l2, shrink = kind(numbers[5]), kind(numbers[6]), kind(numbers[7]), kind(numbers[8])
    for piece in prange(sizes.size):
        p, m = _part(pieces, sizes, like, 0, piece), _part(pieces, sizes, like, 1, piece)
        v, g = _part(pieces, sizes, like, 2, piece), _part(pieces, sizes, like, 3, piece)
        for i in range(p.size):
            p[i], m[i], v[i] = scalar.adam(p[i], m[i], v[i], g[i], step_size, beta1, rest1, beta2, rest2, eps,
                                           correction, l2, shrink)


@PieceLoop
def _adadelta(pieces: Array, sizes: Array, like: Array, lr: float, rho: float, rest: float, eps: float,
              weight_decay: float) -> None:
    kind = like.dtype.type
    for piece in prange(sizes.size):
        p, v = _part(pieces, sizes, like, 0, piece), _part(pieces, sizes, like, 1, piece)
        u, g = _part(pieces, sizes, like, 2, piece), _part(pieces, sizes, like, 3, piece)
        for i in range(p.size):
            p[i], v[i], u[i] = scalar.adadelta(p[i], v[i], u[i], g[i], kind(lr), kind(rho), kind(rest), kind(eps),
                                               kind(weight_decay))


def _step(kernel: Callable[..., None], tensors: Sequence[Array], groups: int, *numbers: Any) -> None:
    """Do an optimizer's step. tensors: ``groups`` lists of equal length, one after the other, the gradients last.
    The i-th tensors of all lists belong to a parameter; all but its gradient are written. numbers: lr and the like."""
    n = len(tensors) // groups
    together: dict[np.dtype[Any], list[tuple[Array, ...]]] = {}
    for i in range(n):
        members = tuple(tensors[i::n])
        if all(a.dtype == members[0].dtype and is_plain(a) for a in members):
            together.setdefault(members[0].dtype, []).append(members)
        else:
            _staged_step(kernel, members, *numbers)
    for several in together.values():
        _run(kernel, several, *numbers)


def _run(kernel: Callable[..., None], several: Sequence[tuple[Array, ...]], *numbers: Any) -> None:
    """Run one kernel call for several parameters' tensors, contiguous and of one dtype. numbers: lr and the like."""
    totals = np.array([members[0].size for members in several])
    counts = -(-totals // CHUNK)
    owner = np.repeat(np.arange(len(several)), counts)
    start = (np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)) * CHUNK
    addresses = np.array([[a.ctypes.data for a in members] for members in several]).T
    like = several[0][0].reshape(-1)
    kernel(int(totals.sum()), np.ascontiguousarray(addresses[:, owner] + start * like.itemsize),
           np.minimum(totals[owner] - start, CHUNK), like, *numbers)


def _staged_step(kernel: Callable[..., None], members: tuple[Array, ...], *numbers: Any) -> None:
    """Run the step of one parameter whose tensors are 16-bit floats or strided, on contiguous copies."""
    for parts in blocks(*members):
        values = [source(part).astype(np.float32 if is_half(members[0].dtype) else members[0].dtype, copy=False)
                  for part in parts]
        _run(kernel, [tuple(values)], *numbers)
        for part, results in zip(parts[:-1], values[:-1], strict=True):
            if results is not part:
                part[...] = results


def sgd_(*tensors: Array, lr: float, weight_decay: float = 0.0) -> None:
    """p -= lr * (g + weight_decay * p), in place. tensors: all parameters p, then all gradients g."""
    _step(_sgd, tensors, 2, float(lr), float(weight_decay))


def sgd_momentum_(*tensors: Array, lr: float, momentum: float, weight_decay: float = 0.0,
                  first: bool = False) -> None:
    """buf = momentum * buf + g + weight_decay * p (if ``first``, without momentum * buf); p -= lr * buf, in place.

    Tensors: parameters, buffers, gradients. On the first step the buffers are written without being read.
    """
    _step(_sgd_momentum, tensors, 3, float(lr), float(momentum), float(weight_decay), first)


def adam_(*tensors: Array, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float = 0.0,
          step: int, decoupled: bool = False) -> None:
    """Do one step of Adam in place (Kingma & Ba 2015, algorithm 1); ``step`` counts from 1.

    The decay is L2, in the gradient, or if ``decoupled`` a separate factor (AdamW: Loshchilov & Hutter 2019).
    Tensors: parameters, first moments, second moments, gradients.
    """
    l2, shrink = (0.0, 1.0 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    _step(_adam, tensors, 4, np.array([lr / (1.0 - beta1**step), beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps,
                                       (1.0 - beta2**step) ** 0.5, l2, shrink]))


def adadelta_(*tensors: Array, lr: float, rho: float, eps: float, weight_decay: float = 0.0) -> None:
    """Do a step of Adadelta (Zeiler 2012). tensors: parameters, mean squares of gradients and of steps, gradients."""
    _step(_adadelta, tensors, 4, float(lr), float(rho), 1.0 - rho, float(eps), float(weight_decay))


# Fills --------------------------------------------------------------------------------------------------------------
def add_(a: Array, b: Array) -> None:
    """a += b."""
    elementwise.add(a, a, b)


def copy_(a: Array, b: Array) -> None:
    """a = b, of one shape and dtype."""
    copy(a, b)


def fill_(a: Array, *, value: float) -> None:
    """a = ``value`` in every element."""
    a.fill(value)


def full(y: Array, *, value: float, **_: Any) -> None:
    """y = ``value`` in every element."""
    y.fill(value)


def _samples(a: Array, draw: Callable[..., Array], seed: int, start: int) -> Iterator[tuple[Array, Array]]:
    """Yield (array for the values of a piece of a, random numbers for it), from the generator's number ``start`` on.

    The generator cannot skip: some numbers take more draws than others, so the numbers before ``start`` are drawn too.
    """
    generator = np.random.Generator(np.random.Philox(key=seed))
    kind = np.float32 if is_half(a.dtype) else a.dtype.type
    for before in range(0, start, CHUNK):
        draw(generator, min(CHUNK, start - before), dtype=kind)
    for (part,) in blocks(a):
        values = room(part)
        yield values, draw(generator, values.shape, dtype=kind)
        settle(part, values)


def normal_(a: Array, *, seed: int, mean: float, std: float, start: int = 0) -> None:
    """a = normal random numbers: element i, in C order, follows from (seed, start + i)."""
    for values, sample in _samples(a, np.random.Generator.standard_normal, seed, start):
        sample *= std
        np.add(sample, mean, out=values)


def uniform_(a: Array, *, seed: int, low: float, high: float, start: int = 0) -> None:
    """a = uniform random numbers in [low, high): element i, in C order, follows from (seed, start + i)."""
    below = np.nextafter(a.dtype.type(high), a.dtype.type(low))  # scaling may round up to ``high``
    for values, sample in _samples(a, np.random.Generator.random, seed, start):
        sample *= high - low
        sample += low
        np.minimum(sample, values.dtype.type(below), out=values)


def upload(y: Array, *, data: Any, **_: Any) -> None:
    """y = the host array ``data``, converted to y's dtype; zeros if ``data`` is None."""
    if data is None:
        y.fill(0)
        return
    np.copyto(y, np.asarray(data), casting="unsafe")


def upload_(a: Array, *, data: Any) -> None:
    """a = the host array ``data``, converted to a's dtype; zeros if ``data`` is None."""
    upload(a, data=data)
