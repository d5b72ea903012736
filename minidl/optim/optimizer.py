"""The base class of optimizers: parameters in groups, their state, and updates in chunks."""

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import apply_all
from minidl.errors import UserError, WrongKind
from minidl.meta import DTYPES, Shape, block_bytes
from minidl.op import Attrs, Op
from minidl.ops.shape import between
from minidl.ops.update import fill_
from minidl.optim.groups import Parameters, completed, require_at_least_zero
from minidl.optim.on_host import HOST_UPDATES, HostArray, write
from minidl.parts.sharding.sharder import shard_bounds
from minidl.parts.slicing.cuts import is_divided
from minidl.parts.slicing.logical import Logical
from minidl.runtime import current_runtime, parameter
from minidl.tensor import Tensor

# The most bytes of parameters in one update call, whose parameters, state and gradients must be on the device together.
# At this size the launch costs nothing noticeable. On small devices calls are smaller (``Memory.update_bytes``), so
# that the program's largest call is a layer, or the update of one parameter.
CHUNK_BYTES = 8 * 2**20


# The states of a parameter with more bytes are stored in parts along its first dimension, with one update call per
# part, so that a call needs only a part of each state. The bits are the same, because updates are elementwise.
PART_BYTES = 512 * 2**20


class RowRange(NamedTuple):
    """The rows ``start`` to ``stop`` - 1 of parameter number ``owner``; ``whole``: True if these are all rows."""

    owner: int
    start: int
    stop: int
    whole: bool


class Optimizer:
    """The base class of optimizers: ``step()`` runs one in-place update call per chunk of parameters with a gradient.

    Each group of parameters has its own rates in ``param_groups``, which may change at any time; setting ``lr`` sets
    the rate of all groups. The constructor creates the state, as zeros, so that a training step's memory is known
    before the first step; with ``Runtime(host_update=True)`` it is in host memory, if the update is one operation. A
    subclass names its states, the update operation and its attributes.
    """

    _plain = True  # an update is one operation

    def __init__(self, params: Parameters, *, op: Op, rates: dict[str, Any], states: tuple[str, ...] = (),
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """``params``: tensors, or groups {"params": tensors, "lr": ...} with the rates that differ from ``rates``.

        ``decays``: returns True for a parameter to which weight decay applies; default: all. Parameters without a
        gradient are not updated. Raises UserError for no parameters, a repeated parameter, the result of an operation,
        a group with an unknown rate, or rates that ``check`` refuses.
        """
        self.param_groups: list[dict[str, Any]] = []
        self.parameters: list[Tensor] = []
        self.defaults = rates
        self._group: list[int] = []
        self._decays: list[bool] = []
        self._pieces: list[RowRange] = []
        self._divided: list[bool] = []  # True for a piece whose states are divided among ranks
        self._states: dict[str, list[Any]] = {name: [] for name in states}  # of Tensor, or all of HostArray
        self._op, self._is_decayed = op, decays
        self._host_op = HOST_UPDATES.get(op.name) if current_runtime().host_update and self._plain else None
        self._extend(completed(params, rates))

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add a group of parameters, updated from the next step on; its state starts at zero.
        Raises UserError for a parameter that the optimizer has, an unknown rate, or one that ``check`` refuses."""
        self._extend(completed([param_group], self.defaults))

    def _extend(self, groups: list[dict[str, Any]]) -> None:
        added = [p for group in groups for p in group["params"]]
        if not added:
            raise UserError("the optimizer was given no parameters")
        for p in added:
            if not isinstance(p, Tensor):
                raise WrongKind(f"the optimizer was given a {type(p).__name__} instead of a parameter")
        if len({p.tensor_id for p in (*self.parameters, *added)}) < len(self.parameters) + len(added):
            raise UserError("the optimizer was given the same parameter more than once")
        if any(p.operation_name for p in added):
            raise UserError("the optimizer was given the result of an operation; it can update only leaves")
        for group in groups:
            self.check(group)
        first = len(self.parameters)
        pieces = [piece for index, p in enumerate(added, first) for piece in _pieces(index, p)]
        zeros = _zeros_like if self._host_op is None else _zeros_on_host
        states = {name: [zeros(added[piece.owner - first], piece) for piece in pieces] for name in self._states}
        self._group += [i for i, group in enumerate(groups, len(self.param_groups)) for _ in group["params"]]
        self._decays += [self._is_decayed is None or bool(self._is_decayed(p)) for p in added]
        self.param_groups += groups
        self.parameters += added
        self._pieces += pieces
        for n in range(len(pieces)):
            self._divided.append(is_divided([x.storage for x in (made[n] for made in states.values())
                                             if isinstance(x, Tensor)]))
        for name, made in states.items():
            self._states[name] += made

    def check(self, group: dict[str, Any]) -> None:
        """Raise UserError if a rate of a group is invalid: here if ``lr`` or ``weight_decay`` is negative or NaN."""
        require_at_least_zero(lr=group["lr"], weight_decay=group["weight_decay"])
        self.check_states(group)

    def check_states(self, group: dict[str, Any]) -> None:
        """Raise UserError for a rate that needs a state which the optimizer was made without. By default none does.
        Each step asks this, since a program may change a group at any time."""

    def _check_groups(self) -> None:
        """Raise UserError if a program has changed the groups in a way that ``step`` could not follow."""
        held = [p for group in self.param_groups for p in group["params"]]
        if len(held) != len(self.parameters) or not all(map(is_, held, self.parameters)):
            raise UserError(f"the groups list {len(held)} parameters, which are not the {len(self.parameters)} of the "
                            "optimizer: add_param_group() adds parameters")
        for group in self.param_groups:
            self.check_states(group)

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets the rate of all groups."""
        rate: float = self.param_groups[0]["lr"]
        return rate

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def rates(self, index: int) -> dict[str, Any]:
        """Return the rates, such as lr, of the group of parameter number ``index``."""
        return self.param_groups[self._group[index]]

    def attributes(self, index: int = 0) -> Attrs:
        """Return the update operation's attributes, such as lr, for parameter ``index``; equal within one call."""
        rates = self.rates(index)
        return {"lr": float(rates["lr"]), "weight_decay": float(rates["weight_decay"]) if self._decays[index] else 0.0}

    def kind(self, index: int) -> tuple[int, bool, int]:
        """Return a key that is equal for parameters which one call may update.
        The key: (minus the group's number, ``decays`` of the parameter, its number of steps if updates use it or 0)."""
        return -self._group[index], self._decays[index], 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call ``closure``, if given, update every parameter that has a gradient, and return the closure's result.
        After an error, such as OutOfMemory, only the parameters that were updated count the step. Raises UserError if a
        group has been changed to parameters, or to a rate, that the optimizer was not made for."""
        result = closure() if closure is not None else None
        self._check_groups()
        updated: set[int] = set()
        try:
            for chunk in self._chunks():
                self._update(chunk)
                updated.update(self._pieces[number].owner for number in chunk)
        finally:
            self.stepped(updated)
        return result

    def _update(self, chunk: list[int]) -> None:
        """Update the pieces with these numbers, which all have one ``kind``, in one call."""
        pieces = [self._pieces[number] for number in chunk]
        with no_grad():
            tensors = [rows_of_piece(self.parameters[piece.owner], piece) for piece in pieces]
            states = [state[number] for state in self._states.values() for number in chunk]
            if self._host_op is None:
                tensors += states
            tensors += [rows_of_piece(grad, piece) for piece in pieces
                        if (grad := self.parameters[piece.owner].grad) is not None]
        attributes = self.attributes(pieces[0].owner)
        if self._host_op is None:
            apply_all(self._op, *tensors, **attributes)
        else:
            apply_all(self._host_op, *tensors, **attributes, states=tuple(state.array for state in states))

    def stepped(self, updated: set[int]) -> None:
        """Called with the numbers of the parameters that a step has updated. By default no steps are counted."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of this optimizer's parameters to None and free them, also with ``set_to_none=False``."""
        for tensor in self.parameters:
            tensor.grad = None

    def _chunks(self) -> Iterator[list[int]]:
        """Yield chunks of piece numbers whose parameters have a gradient, grouped by kind, the highest kind first.
        A chunk exceeds CHUNK_BYTES, or the memory's limit with states and gradients, only if it is a single piece."""
        most = current().memory.update_bytes // (len(self._states) + 2)
        alike: dict[tuple[tuple[int, bool, int], bool], list[int]] = {}
        for number, piece in enumerate(self._pieces):
            gradient = self.parameters[piece.owner].grad
            if gradient is not None:
                storage = gradient.storage
                divided = self._divided[number] or isinstance(storage, Logical) and storage.divided
                alike.setdefault((self.kind(piece.owner), divided), []).append(number)
        for _, numbers in sorted(alike.items(), reverse=True):
            chunk: list[int] = []
            nbytes = taken = 0  # bytes of the parameters, and of their blocks
            for number in numbers:
                owner, start, stop, whole = self._pieces[number]
                described = self.parameters[owner].storage.meta
                size = described.nbytes if whole else described.nbytes // described.shape[0] * (stop - start)
                block = block_bytes(size)
                if chunk and (nbytes + size > CHUNK_BYTES or taken + block > most):
                    yield chunk
                    chunk, nbytes, taken = [], 0, 0
                chunk.append(number)
                nbytes += size
                taken += block
            if chunk:
                yield chunk

    def named_states(self) -> dict[str, Tensor | HostArray]:
        """Return the state's tensors by name: ``<state>.<parameter index>``.
        For a part of a parameter ``.<first row>`` follows."""
        return {f"{name}.{piece.owner}" if piece.whole else f"{name}.{piece.owner}.{piece.start}": tensor
                for name, tensors in self._states.items() for piece, tensor in zip(self._pieces, tensors, strict=True)}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies on the host of the state, by ``<state>.<parameter index>``, without lr and other rates."""
        found: dict[str, list[np.ndarray]] = {}
        for name, tensors in self._states.items():
            for piece, tensor in zip(self._pieces, tensors, strict=True):
                found.setdefault(f"{name}.{piece.owner}", []).append(tensor.numpy())
        return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in found.items()}

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite the state with a ``state_dict``.
        If names or shapes do not fit, or values are not numbers, raise UserError and write nothing."""
        shapes = {f"{name}.{index}": p.shape for name in self._states for index, p in enumerate(self.parameters)}
        if arrays.keys() != shapes.keys():
            wrong = sorted(arrays.keys() ^ shapes.keys())
            raise UserError(f"the state does not fit {type(self).__name__} of {len(self.parameters)} parameters: "
                            f"{len(wrong)} names are missing or unexpected, the first is {wrong[0]}")
        values = {name: np.asarray(arrays[name]) for name in shapes}
        for name, shape in shapes.items():
            if values[name].shape != shape:
                raise UserError(f"the state does not fit {type(self).__name__}: {name} is "
                                f"{list(values[name].shape)} and must be {list(shape)}")
        writes: list[tuple[Tensor | HostArray, np.ndarray]] = []  # check all values before the first write
        for name, tensors in self._states.items():
            for piece, tensor in zip(self._pieces, tensors, strict=True):
                array = values[f"{name}.{piece.owner}"]
                if array.dtype.kind not in "biuf" and array.dtype.name not in DTYPES:
                    raise UserError(f"the state does not fit {type(self).__name__}: {name}.{piece.owner} has values of "
                                    f"{array.dtype.name}")
                # Copy: the upload runs later, in stream order, and the caller may change the array before that.
                writes.append((tensor, np.array(array if piece.whole else array[piece.start:piece.stop],
                                                tensor.dtype.name, order="C")))
        for tensor, array in writes:
            write(tensor, array)


def _pieces(index: int, tensor: Tensor) -> list[RowRange]:
    """Return the row ranges of a parameter that have states of their own: its shards, in equal parts if they are large.
    """
    found = []
    for first, stop in (bounds := shard_bounds(tensor)):
        rows = stop - first
        count = max(1, min(rows, -(-tensor.nbytes * rows // (bounds[-1][1] * PART_BYTES)))) if rows else 1
        cuts = [first + rows * i // count for i in range(count + 1)]
        found += [RowRange(index, *cut, whole=False) for cut in zip(cuts, cuts[1:], strict=False)]
    return found if len(found) > 1 else [found[0]._replace(whole=True)]


def rows_of_piece(tensor: Tensor, piece: RowRange) -> Tensor:
    """Return the rows ``piece`` of a parameter or of its gradient: a view, or the tensor itself for all rows."""
    return tensor if piece.whole else between(tensor, 0, piece.start, piece.stop)


def _shape(tensor: Tensor, piece: RowRange) -> Shape:
    return tensor.shape if piece.whole else (piece.stop - piece.start, *tensor.shape[1:])


def _zeros_on_host(tensor: Tensor, piece: RowRange) -> HostArray:
    return HostArray(_shape(tensor, piece), tensor.dtype)


def _zeros_like(tensor: Tensor, piece: RowRange) -> Tensor:
    state = parameter(_shape(tensor, piece), dtype=tensor.dtype, requires_grad=False, state=True)
    fill_(state, 0.0)
    return state
