"""The hooks by which guided execution attaches to on-demand memory: methods that on-demand memory calls at set times.

    begin and end of an iteration   ``begin_iteration``; ``end_iteration``, ``pack`` (of survivors), ``start``
    before and after a call         ``before_call``; ``after_call``
    a block for new bytes           ``place``, at a planned address; ``gather``, at any

With the other methods on-demand memory asks questions, asks for free bytes or for a tensor, or tells that a tensor came
back or has no further use. ``GuidedExecution`` of ``memory/guided`` overrides all methods. The defaults evict nothing
and bring nothing back ahead of time.
"""

from collections.abc import Callable, Collection, Iterable, Sequence, Sized

from minidl.memory.bytes.block import Block
from minidl.memory.storage import Storage, TensorId
from minidl.op import Signature
from minidl.plan.trace import Trace


class Hooks:
    """The hooks with their defaults, which do nothing: memory without a plan.

    due      what ``before_call`` has to start; it is not called if this is empty
    follows  ``after_call`` is called only if this is True
    acts     True if in this iteration tensors leave and return ahead of time
    places   True if in this iteration tensors have planned addresses"""

    due: Sized = ()
    follows = False
    acts = False
    places = False

    def before_call(self) -> None:
        """Start the swap-ins, replays and moves that are due before the next call."""

    def place(self, storage: Storage, donor: Callable[[int], Block | None] | None = None,
              stays: Callable[[], Collection[Block]] = tuple,
              operands: Callable[[], Collection[Storage]] | None = None) -> Block | None:
        """Allocate the block at a storage's planned address; None if it has no address, or its bytes are in use.
        donor: called with the address; returns the block there, if an operand of the current call can donate it.
        stays: returns the blocks that must not be moved. operands: returns the storages that must not be dropped; None:
        nothing is dropped."""
        return None

    def gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """Allocate a block without an eviction: slide blocks together, or free those that are being copied out.
        None if that is not enough, or none is being copied out. high: near the top of the arena."""
        return None

    def after_call(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...],
                   operands: Sequence[Storage]) -> None:
        """Called after a call was launched and recorded. read, made: the ids of its inputs and outputs."""

    def begin_iteration(self) -> None:
        """Called when the program begins an iteration. The time since the last one counts for neither iteration."""

    def end_iteration(self, trace: Callable[[], Trace], *, failed: bool) -> None:
        """Called when an iteration has ended, before ``pack``. trace: builds its trace. failed: an error ended it."""

    def pack(self, survivors: Collection[Storage], fresh: Collection[Storage], *, failed: bool) -> None:
        """Move survivors to the addresses that the next iteration expects; after an error (``failed``) move none.
        fresh: the survivors that this iteration has made."""

    def start(self) -> None:
        """Called after ``pack``, when the next iteration may begin."""

    # Questions -----------------------------------------------------------------------------------------------
    def algorithm(self, signature: Signature) -> str | None:
        """The name of the algorithm that the plan has for the next call; None if the plan leaves it open."""
        return None

    def drops_next(self, storage: Storage) -> bool:
        """True if the plan drops a storage right after the next call."""
        return False

    def recorded(self) -> tuple[Trace | None, int] | None:
        """(The trace that this iteration has repeated so far or None, its next call's number); None without a plan."""
        return None

    def reclaim(self, need: int, *, everything: bool = False) -> None:
        """Free blocks that are being copied out, until ``need`` bytes are free, or all of them (``everything``)."""

    def relent(self) -> bool:
        """Give up the plan, because an allocation has failed. False if no plan was followed."""
        return False

    def arrive(self, storage: Storage) -> None:
        """Called when a storage is needed while it is copied out or in: make its bytes usable on the device."""

    def returned(self, storage: Storage, replay: Sequence[float] | None = None) -> None:
        """Called when a storage came back on demand. replay: seconds of the replayed calls; None for a swap-in."""

    def release(self, storage: Storage) -> None:
        """Called when a replay has read a storage for the last time."""

    def signatures(self) -> Iterable[Signature]:
        """The signatures of all calls in the known sequences: the executor forgets others first."""
        return ()


ALONE = Hooks()


class Attached:
    """Holds the ``hooks`` that on-demand memory calls: the defaults, until guided execution sets its own."""

    def __init__(self) -> None:
        self.hooks: Hooks = ALONE
