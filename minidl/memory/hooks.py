"""The hooks by which guided execution attaches to on-demand memory. Knows nothing of the object that attaches.

    before a call           ``before_call``
    an address for bytes    ``place``
    after a call            ``after_call``
    end of an iteration     ``end_iteration``, ``pack``, ``start``

The other methods answer questions between these. ``memory/guided`` has the one class that overrides them. On-demand
memory alone uses the defaults, which evict nothing and bring nothing back ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Sized

from minidl.memory.bytes.block import Block
from minidl.memory.storage import Storage, TensorId
from minidl.op import Signature
from minidl.plan.trace import Trace


class Hooks:
    """The defaults."""

    due: Sized = ()  # work for ``before_call``, which is called only if there is some
    follows = False  # ``after_call`` is called only if this is True
    acts = False  # tensors leave and return ahead of time in this iteration
    places = False  # tensors have planned addresses in this iteration

    def before_call(self) -> None:
        """Start what is due before the next call."""

    def place(self, storage: Storage, donor: Callable[[int], Block | None] | None = None,
              stays: Callable[[], Collection[Block]] = tuple) -> Block | None:
        """The block at the planned address of a storage; None if it has none, or its bytes cannot be had.

        donor: donates the block of an operand of the call under way that lies at an address. stays: blocks that must
        not be moved.
        """
        return None

    def gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """A block made of blocks that are being copied out, so without an eviction; None if these do not suffice."""
        return None

    def after_call(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...],
                   operands: Sequence[Storage]) -> None:
        """A call was launched and recorded: it read and made tensors of these ids."""

    def begin_iteration(self) -> None:
        """The program begins an iteration. The time since the last one belongs to neither."""

    def end_iteration(self, trace: Callable[[], Trace], *, failed: bool) -> None:
        """An iteration has ended; its survivors are not packed yet. ``trace`` builds its record."""

    def pack(self, survivors: Collection[Storage], fresh: Collection[Storage], *, failed: bool) -> None:
        """Move the survivors of an iteration to where the next one expects them. fresh: those that it has made."""

    def start(self) -> None:
        """The next iteration may begin: its survivors are packed, and the device's notes are empty."""

    # Questions -----------------------------------------------------------------------------------------------
    def algorithm(self, signature: Signature) -> str | None:
        """The name of the algorithm planned for the next call; None if any will do."""
        return None

    def drops_next(self, storage: Storage) -> bool:
        """True if a storage will be dropped right after the next call."""
        return False

    def recorded(self) -> tuple[Trace | None, int] | None:
        """The recorded iteration that this one repeats so far, and the number of the next call in it."""
        return None

    def reclaim(self, need: int, *, everything: bool = False) -> None:
        """Free blocks that are being copied out until ``need`` bytes are free, or all of them."""

    def relent(self) -> bool:
        """An allocation has failed: give up the plan. False if there is none."""
        return False

    def arrive(self, storage: Storage) -> None:
        """A storage is needed while a copy of it is under way."""

    def returned(self, storage: Storage, replay: Sequence[float] | None = None) -> None:
        """A storage came back on demand: by a copy, or by a replay whose calls take these seconds."""

    def release(self, storage: Storage) -> None:
        """A replay has read a storage for the last time."""

    def signatures(self) -> Iterable[Signature]:
        """The signatures of all recorded sequences of calls."""
        return ()


ALONE = Hooks()


class Attached:
    """Where guided execution attaches: on-demand memory asks these ``hooks``."""

    def __init__(self) -> None:
        self.hooks: Hooks = ALONE
