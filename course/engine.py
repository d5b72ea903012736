"""The engine in miniature: training on a device that is too small, in one file and on NumPy alone.

A tensor is where its array is: on the device, on the host, on both, or nowhere. A tensor that is nowhere is computed
again. An operation needs its inputs on the device and room for its outputs beside them. ``Engine.run`` sees to both:

    materialize   bring the inputs to the device: swap in from the host, or replay what was dropped
    make_room     evict other tensors until the outputs fit: swap them out, or drop them
    compute       run the operation
    record        note which tensors it has used: this decides which ones are evicted next
    free          give up the tensors that the program does not use any more

The device is a budget of bytes and a counter. The real engine also has addresses, copies that overlap with computation,
outputs that take over an input's bytes, workspaces, a host that can be full, and plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Call(NamedTuple):
    """One operation of a program, on tensors by their names."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nbytes: tuple[int, ...]  # of each output: room is made before anything is computed
    compute: Callable[..., Sequence[Array]]  # from the inputs' arrays to the outputs': each time the same
    writes: tuple[str, ...] = ()  # inputs that it changes in place
    frees: tuple[str, ...] = ()  # tensors that the program does not use after this call
    replayable: bool = True  # False for an upload of data, say, which cannot be asked for again


class Tensor:
    """The record of a tensor: all that is known of it but its array."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes = name, nbytes
        self.lineage: Lineage | None = None  # how it can be made again; a tensor without a lineage is a leaf
        self.users = 1  # how many ask for its bytes: the program, and replays
        self.first_access: int | None = None  # the first call of this iteration that has used it
        self.written = 0  # the last call that has changed it in place


class Lineage(NamedTuple):
    """A call that was run, by its number, and the records that it was run on."""

    number: int
    call: Call
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Engine:
    """Runs a program within a budget of bytes. ``drops``: evict by dropping what can be made again, not by swapping."""

    def __init__(self, budget: int, *, drops: bool = False) -> None:
        self.budget, self.drops = budget, drops
        self.used = self.number = 0  # bytes on the device; the number of the last call
        self.device: dict[Tensor, Array] = {}
        self.host: dict[Tensor, Array] = {}
        self.known: dict[str, Tensor] = {}  # what the program can name
        self.placed: dict[Tensor, None] = {}  # all that has bytes or was dropped, in the order in which it was made
        self.dropped: dict[Tensor, None] = {}  # tensors that are nowhere and may be asked for
        self.kept: dict[Tensor, None] = {}  # what replays have made, and the program has not used since
        self.protected: set[Tensor] = set()  # what replays under way start from: it may be swapped, but not dropped
        self.writing: set[Tensor] = set()  # what the call under way changes in place
        self.log: list[tuple[str, str]] = []  # all that was decided: (verb, name of a tensor or of a call)

    def iterate(self, calls: Sequence[Call]) -> None:
        """Run one iteration. What the last one has left, and this one makes anew, is freed first."""
        for name in [name for call in calls for name in call.outputs if name in self.known]:
            self.free(self.known.pop(name))
        for tensor in [tensor for tensor in self.placed if not tensor.users]:
            self.discard(tensor)
        for call in calls:
            self.run(call)
        self.end_iteration()

    def leaf(self, name: str, array: Array) -> None:
        """Put a tensor that no call makes on the device: a parameter. Raises MemoryError."""
        tensor = self.known[name] = Tensor(name, array.nbytes)
        self.make_room(tensor.nbytes, ())
        self.place(tensor, array.copy())

    def run(self, call: Call) -> None:
        """Carry out one operation. Raises MemoryError if its operands alone need more than the budget."""
        inputs = tuple(self.known[name] for name in call.inputs)
        self.before_write({self.known[name] for name in call.writes}, inputs)
        self.materialize(inputs)
        self.number += 1
        outputs = tuple(Tensor(name, nbytes) for name, nbytes in zip(call.outputs, call.nbytes, strict=True))
        self.compute(call, inputs, outputs)
        self.log.append(("run", call.name))
        self.record((*inputs, *outputs))
        self.after_write()
        if call.replayable and not call.writes:
            for output in outputs:
                output.lineage = Lineage(self.number, call, inputs, outputs)
        self.known |= zip(call.outputs, outputs, strict=True)
        for name in call.frees:
            self.free(self.known.pop(name))

    def compute(self, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Make room for one output after the other, and compute them. The inputs are on the device."""
        for n, output in enumerate(outputs):
            self.make_room(output.nbytes, (*inputs, *outputs[:n]))
            self.place(output, np.empty(0))  # its bytes are counted now, its array comes below
        arrays = call.compute(*[self.device[tensor] for tensor in inputs])
        self.device.update(zip(outputs, arrays, strict=True))

    def record(self, tensors: Iterable[Tensor]) -> None:
        """Note an access of each tensor: the paper's access list, as far as eviction reads it."""
        for tensor in tensors:
            self.kept.pop(tensor, None)
            if tensor.first_access is None:
                tensor.first_access = self.number

    # Leaving the device --------------------------------------------------------------------------------------------
    def make_room(self, nbytes: int, locked: Iterable[Tensor]) -> None:
        """Evict tensors until so many bytes are free. ``locked``: the operands of the call under way, which stay."""
        stay = {tensor for tensor in locked if tensor in self.device}
        in_use = sum(tensor.nbytes for tensor in stay)
        if in_use + nbytes > self.budget:
            raise MemoryError(f"{nbytes} bytes beside {in_use} in use by the same operation, and {self.budget} in all")
        for tensor in [tensor for tensor in self.kept if tensor not in stay]:
            if self.used + nbytes <= self.budget:
                return
            if tensor not in self.device:  # it has been swapped out
                del self.kept[tensor]
            elif self.may_drop(tensor):
                self.drop(tensor)
        for tensor in self.victims(nbytes, stay):
            if self.used + nbytes <= self.budget:
                return
            self.evict(tensor)

    def victims(self, nbytes: int, stay: set[Tensor]) -> list[Tensor]:
        """Rank the tensors that may leave, the first to leave first (Capuchin, section 4.2, passive mode).

        The backward pass reads last what was made first. So tensors leave by their first access: those of once to twice
        the wanted size, then smaller ones, then larger ones. Tensors that this iteration has not used leave last.
        """
        def rank(tensor: Tensor) -> tuple[bool, int, int]:
            size = 0 if nbytes <= tensor.nbytes <= 2 * nbytes else 1 if tensor.nbytes < nbytes else 2
            return tensor.first_access is None, size, tensor.first_access or 0

        return sorted((tensor for tensor in self.placed if tensor in self.device and tensor not in stay), key=rank)

    def evict(self, tensor: Tensor) -> None:
        """Take a tensor off the device, by one of the two ways."""
        (self.drop if self.drops and self.may_drop(tensor) else self.swap_out)(tensor)

    def swap_out(self, tensor: Tensor) -> None:
        """Move a tensor to the host. A copy that the host still has is valid: a write would have removed it."""
        if tensor not in self.host:
            self.log.append(("copy out", tensor.name))
            self.host[tensor] = self.device[tensor].copy()
        self.log.append(("swap", tensor.name))
        self.leave(tensor)

    def drop(self, tensor: Tensor) -> None:
        """Give up a tensor's bytes. They are computed again when a call reads them."""
        self.log.append(("drop", tensor.name))
        self.leave(tensor)
        self.host.pop(tensor, None)
        self.kept.pop(tensor, None)
        self.dropped[tensor] = None

    def place(self, tensor: Tensor, array: Array) -> None:
        """Put an array on the device. Room has been made for it."""
        self.device[tensor], self.placed[tensor] = array, None
        self.used += tensor.nbytes

    def leave(self, tensor: Tensor) -> None:
        """Take an array off the device."""
        del self.device[tensor]
        self.used -= tensor.nbytes

    # Coming back ---------------------------------------------------------------------------------------------------
    def materialize(self, tensors: Sequence[Tensor]) -> None:
        """Bring tensors to the device. Replays come first: they may need all the room, so nothing is locked yet."""
        fresh = set(tensors) - self.protected
        self.protected |= fresh
        if nowhere := [tensor for tensor in dict.fromkeys(tensors) if self.is_nowhere(tensor)]:
            self.replay(nowhere)
        for tensor in dict.fromkeys(tensors):
            if tensor not in self.device:
                self.make_room(tensor.nbytes, tensors)
                self.swap_in(tensor)
        self.protected -= fresh

    def swap_in(self, tensor: Tensor) -> None:
        """Copy a tensor back. The host keeps its copy, so the tensor can leave again without another one."""
        self.log.append(("copy in", tensor.name))
        self.place(tensor, self.host[tensor].copy())

    def is_nowhere(self, tensor: Tensor) -> bool:
        """Say whether a tensor has no bytes anywhere."""
        return tensor not in self.device and tensor not in self.host

    def missing(self, *targets: Tensor) -> list[Lineage] | None:
        """Find the calls that make tensors again, oldest first. None if an input is lost, or was written since."""
        found: dict[int, Lineage] = {}
        wanted = [*targets]
        while wanted:
            made = wanted.pop().lineage
            if made is None or any(read.written > made.number for read in made.inputs):
                return None
            if made.number not in found:
                found[made.number] = made
                wanted += filter(self.is_nowhere, made.inputs)
        return [found[number] for number in sorted(found)]

    def may_drop(self, tensor: Tensor) -> bool:
        """Say whether a tensor can be made again, also after the write under way, and no replay needs it now."""
        calls = self.missing(tensor) if tensor not in self.protected else None
        return calls is not None and self.writing.isdisjoint(read for made in calls for read in made.inputs)

    def replay(self, targets: Sequence[Tensor]) -> None:
        """Compute dropped tensors again. Others that are made on the way stay while there is room."""
        calls = self.missing(*targets)
        assert calls is not None, f"{targets[0].name} is lost"
        left = Counter(read for made in calls for read in set(made.inputs))
        fresh = left.keys() - self.protected
        self.protected |= fresh
        for read in left:
            read.users += 1
        for made in calls:
            self.replay_call(made)
            for read in dict.fromkeys(made.inputs):
                left[read] -= 1
                if not left[read]:  # no call of this replay reads it any more
                    self.protected -= {read} & fresh
                    self.free(read)

    def replay_call(self, made: Lineage) -> None:
        """Run one call again. Of its outputs only those that are missing and have users are kept."""
        self.materialize(made.inputs)
        outputs = [t if t.users and self.is_nowhere(t) else Tensor("", t.nbytes) for t in made.outputs]
        self.compute(made.call, made.inputs, outputs)
        self.log.append(("replay", made.call.name))
        for output in outputs:
            if output in made.outputs:
                self.dropped.pop(output, None)
                self.kept[output] = None
            else:
                self.discard(output)

    # Writes in place, and the end ----------------------------------------------------------------------------------
    def before_write(self, targets: set[Tensor], inputs: Sequence[Tensor]) -> None:
        """Compute the dropped tensors that can only be computed from the old bytes. The call's inputs come later."""
        self.writing = targets
        while targets and (lost := [t for t in self.dropped if t not in inputs and self.missing(t)
                                    and not self.may_drop(t)]):
            self.materialize(lost[:1])
            self.protected.add(lost[0])

    def after_write(self) -> None:
        """Forget the host's copies of the old bytes, and how these were made."""
        for tensor in self.writing:
            tensor.written, tensor.lineage = self.number, None
            self.host.pop(tensor, None)
        self.writing = set()
        self.protected.clear()

    def free(self, tensor: Tensor) -> None:
        """Count one user less. The last one frees the bytes, unless a dropped tensor can only be made from them."""
        tensor.users -= 1
        needed = tensor not in self.dropped and not self.may_drop(tensor) and any(
            tensor in made.inputs for gone in self.dropped if gone.users for made in self.missing(gone) or ())
        if not tensor.users and tensor.lineage is not None and not needed:
            self.discard(tensor)

    def discard(self, tensor: Tensor) -> None:
        """Free a tensor's bytes wherever they are."""
        if tensor in self.device:
            self.leave(tensor)
        for part in (self.host, self.dropped, self.kept, self.placed):
            part.pop(tensor, None)

    def end_iteration(self) -> None:
        """Compute the dropped tensors that the program still holds, make leaves of all, and empty the access list."""
        for tensor in self.placed:
            if not self.is_nowhere(tensor):
                tensor.lineage = None
        for tensor in list(self.dropped):
            if tensor in self.dropped:
                self.materialize((tensor,))
            tensor.lineage = None
        for tensor in self.placed:
            tensor.first_access = None
        self.kept.clear()
