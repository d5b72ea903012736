"""How an operation becomes kernel launches: compiled functions, grids and arguments, prepared once per signature.

  DeviceFunction     one function to compile, for fixed dtypes, formula and block size; ``source`` in the code
  Launch             a DeviceFunction, a number of thread blocks, and its arguments, in which operands are numbers and
                     not yet addresses
  Launches           collects the launches of one call, and its workspace; kernels add to it
  PreparedLaunches   the result: the launches of one call and the bytes of workspace that they share
  Kernel             prepares an operation's launches; ``issue`` fills in the addresses and launches

A launcher runs launches: a device with its stream, or a simulator. Grids and blocks have one dimension. Nothing of CUDA
is imported here, so everything can be prepared, and tested, without a GPU.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, final

import numpy as np

from minidl.meta import DTYPES, DType, Meta, Shape, aligned, boolean, row_major, uint8

THREADS = 256  # of a block, unless the problem needs fewer
WORKSPACE = -1  # the operand number of the workspace

# The dtype in which a kernel computes with an operand's dtype, also that of its scalar arguments.
COMPUTE = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}


def compute(dtype: DType) -> str:
    """Return the name of the dtype that kernels compute in: float32 for 16-bit floats, int64 for all integers."""
    return COMPUTE.get(dtype.name, "int64")


@dataclass(frozen=True, eq=False)
class DeviceFunction:
    """One device function to compile: ``make(tools, **options)``, launched with ``threads`` threads per block.

    Equal ones are one object, made by ``source``, so that a launch finds its machine code by id().

    signature  a type for each parameter: "*float32" is a pointer, "int64" or "float32" a number of exactly that width.
    """

    make: Callable[..., Callable[..., None]]
    signature: tuple[str, ...]
    threads: int
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """A readable name, the same in every process, and unique to each device function."""
        options = (f"{key}={getattr(value, '__name__', value)}" for key, value in self.options)
        family = self.make.__module__.rpartition(".")[2]
        return f"{family}.{self.make.__name__}({', '.join(options)}; {', '.join(self.signature)}; {self.threads})"


@cache
def source(make: Callable[..., Callable[..., None]], signature: tuple[str, ...], threads: int,
           options: tuple[tuple[str, Any], ...]) -> DeviceFunction:
    """Return the DeviceFunction with this maker, signature, block size and options."""
    return DeviceFunction(make, signature, threads, options)


@final
@dataclass(frozen=True, slots=True)
class Pointer:
    """An address inside an operand: the operand's number and a distance in bytes."""

    operand: int
    offset: int


@final
@dataclass(frozen=True, slots=True)
class Number:
    """A placeholder for a kernel's argument whose value, by this name, is given when the call is issued.
    kind: the name of its dtype, such as "int64"."""

    name: str
    kind: str


@dataclass(frozen=True)
class View:
    """A tensor's address, dtype, shape and strides (elements) as a kernel sees them."""

    pointer: Pointer
    dtype: DType
    shape: Shape
    strides: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def moved(self, distance: int) -> "View":
        """Return this view, ``distance`` elements further."""
        offset = self.pointer.offset + distance * self.dtype.itemsize
        return replace(self, pointer=replace(self.pointer, offset=offset))

    def narrow(self, axis: int, start: int, stop: int) -> "View":
        """Return the part [start, stop) of one dimension."""
        shape = tuple(stop - start if i == axis else n for i, n in enumerate(self.shape))
        return replace(self.moved(start * self.strides[axis]), shape=shape)

    def expand(self, shape: Shape) -> "View":
        """Return the view broadcast to a shape, unchecked: the stride is 0 in each dimension that is new or grows."""
        lead = len(shape) - len(self.shape)
        strides = tuple(0 if i < lead or self.shape[i - lead] != n else self.strides[i - lead]
                        for i, n in enumerate(shape))
        return replace(self, shape=shape, strides=strides)

    def reshape(self, shape: Shape) -> "View":
        """Return a contiguous view in another shape."""
        assert self.contiguous
        return replace(self, shape=shape, strides=row_major(shape))

    @property
    def contiguous(self) -> bool:
        """True if elements follow each other in C order."""
        return all(n == 1 or s == r for n, s, r in zip(self.shape, self.strides, row_major(self.shape), strict=True))


Argument = View | Number | np.generic


@dataclass(frozen=True)
class Launch:
    """A device function, its number of thread blocks, and its arguments; operands are numbers, not yet addresses."""

    source: DeviceFunction
    blocks: int
    arguments: tuple[Pointer | Number | np.generic, ...]


@dataclass(frozen=True)
class PreparedLaunches:
    """The launches of one call, in their order, and the bytes of workspace that they share."""

    launches: tuple[Launch, ...]
    workspace: int  # bytes

    @property
    def constant(self) -> bool:
        """True if, from call to call, only addresses differ: no argument is a Number."""
        return not any(type(a) is Number for launch in self.launches for a in launch.arguments)

    @property
    def sources(self) -> tuple[DeviceFunction, ...]:
        """The device functions that must be compiled before these launches are issued."""
        return tuple(launch.source for launch in self.launches)


class Launcher(Protocol):
    """The part of a device that a kernel needs: it launches and uploads, in the order of its stream."""

    def launch(self, source: DeviceFunction, blocks: int, arguments: Sequence[int | np.generic]) -> None:
        """Run a device function in ``blocks`` thread blocks.
        arguments: addresses (int), or NumPy scalars of its signature."""

    def upload(self, address: int, data: np.ndarray) -> None:
        """Copy a contiguous host array to an address; the array may be freed when this returns."""


class Launches:
    """Collects the launches of one call and the workspace that they share."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.workspace = 0

    def scratch(self, shape: Shape, dtype: str) -> View:
        """Return a tensor in the workspace, with arbitrary contents."""
        view = View(Pointer(WORKSPACE, self.workspace), DTYPES[dtype], shape, row_major(shape))
        self.workspace += aligned(max(1, view.size) * view.dtype.itemsize)
        return view

    def launch(self, make: Callable[..., Callable[..., None]], blocks: int, *arguments: Argument,
               threads: int = 0, **options: Any) -> None:
        """Add a launch of the kernel that ``make`` returns, compiled for ``options`` and the types of the arguments.
        blocks: the number of thread blocks, at least 1. threads: of each block; 0: THREADS."""
        kinds: list[str] = []
        values: list[Pointer | Number | np.generic] = []
        for argument in arguments:
            if isinstance(argument, View):
                kinds.append(f"*{argument.dtype.name}")
                values.append(argument.pointer)
            elif isinstance(argument, Number):
                kinds.append(argument.kind)
                values.append(argument)
            else:
                kinds.append(argument.dtype.name)
                values.append(argument)
        assert 0 < blocks < 1 << 31, f"{make.__name__}: a grid of {blocks} blocks"
        threads = threads or THREADS
        made = source(make, tuple(kinds), threads, tuple(sorted({**options, "threads": threads}.items())))
        self.launches.append(Launch(made, blocks, tuple(values)))


def integers(*values: int) -> tuple[np.int64, ...]:
    """Return sizes, strides and counts as int64 arguments, the type that kernels take for them."""
    return tuple(map(np.int64, values))


def blocks_of(count: int, each: int) -> int:
    """Return the number of thread blocks for ``count`` elements, ``each`` per block: count / each rounded up."""
    return -(-count // each)


def view(operand: int, meta: Meta) -> View:
    """Return the view of a whole operand, by its number and description. Kernels see booleans as bytes of 0 and 1."""
    dtype = uint8 if meta.dtype is boolean else meta.dtype
    return View(Pointer(operand, meta.offset * dtype.itemsize), dtype, meta.shape, meta.strides)


class Kernel:
    """An operation on a GPU: it prepares the launches for given operands, and issues them.

    add_launches   ``(builder, *views of outputs and inputs, **attributes)``: adds launches to the Launches ``builder``.
                   Called once for the same descriptions and attributes.
    numbers        ``(**attributes) -> {name: value}`` for the attributes that change from call to call, which are its
                   parameters. ``add_launches`` does not get them; its launches refer to the values by name (Number).
    """

    def __init__(self, add_launches: Callable[..., None], numbers: Callable[..., dict[str, Any]] | None = None) -> None:
        self._add_launches = add_launches
        self._numbers = numbers
        self.volatile = frozenset(inspect.signature(numbers).parameters) if numbers else frozenset()
        self._prepared: dict[Any, PreparedLaunches] = {}

    def prepare(self, metas: Sequence[Meta], attrs: dict[str, Any]) -> PreparedLaunches:
        """Return the launches for operands (outputs, then inputs) of these descriptions."""
        fixed = tuple((key, value) for key, value in attrs.items() if key not in self.volatile)
        key = (*metas, fixed)
        prepared = self._prepared.get(key)
        if prepared is None:
            builder = Launches()
            self._add_launches(builder, *(view(i, meta) for i, meta in enumerate(metas)), **dict(fixed))
            prepared = self._prepared[key] = PreparedLaunches(tuple(builder.launches), builder.workspace)
        return prepared

    def numbers(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return, by name, the values of the attributes that may change from call to call (see ``Number``)."""
        if self._numbers is None:
            return {}
        return self._numbers(**{key: value for key, value in attrs.items() if key in self.volatile})

    def workspace(self, metas: Sequence[Meta], attrs: dict[str, Any]) -> int:
        """Return the bytes of workspace that ``issue`` needs for these operands (outputs, then inputs)."""
        return self.prepare(metas, attrs).workspace

    def issue(self, launcher: Launcher, addresses: Sequence[int], metas: Sequence[Meta], attrs: dict[str, Any],
              workspace: int = 0) -> None:
        """Launch on operands (outputs, then inputs) that start at ``addresses``. workspace: the workspace's address."""
        numbers = self.numbers(attrs)
        places = (*addresses, workspace)  # WORKSPACE is the last
        for launch in self.prepare(metas, attrs).launches:
            launcher.launch(launch.source, launch.blocks, [resolved(a, places, numbers) for a in launch.arguments])


def resolved(argument: Pointer | Number | np.generic, places: Sequence[int],
             numbers: dict[str, Any]) -> int | np.generic:
    """Return an argument's value: a Pointer's address, a Number's value as a NumPy scalar, or the scalar itself."""
    if type(argument) is Pointer:
        return places[argument.operand] + argument.offset
    if type(argument) is Number:
        number: np.generic = np.dtype(argument.kind).type(numbers[argument.name])
        return number
    return argument
