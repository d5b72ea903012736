"""``Ranks``: the interface by which one rank sends bytes to the other ranks. Knows no tensors and no device.

All ranks call the same methods in the same order, and each call waits for the others. There are two channels, which do
not wait for each other: exchanges of tensors, which a device's stream makes, and agreements, which the program makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minidl.errors import UserError

if TYPE_CHECKING:
    import numpy as np


LONGEST = 192  # bytes of text by which an exchange is compared
NOTHING, STATES, GRADIENTS = DIVIDES = "nothing", "states", "gradients"


class RanksDiverged(UserError):
    """The error for ranks that do not act alike: one has ended, or makes other calls than the others."""


class Ranks(ABC):
    """One rank, with number ``rank`` (from 0), among the ``count`` ranks of a run: its exchanges with all of them.

    local   the number of this rank among those on its machine, from 0
    divide  what is divided among the ranks, so that each keeps its rows alone: "nothing", optimizer "states" (ZeRO-1),
            or states and "gradients" (ZeRO-2): Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
            Trillion Parameter Models", 2020. Equal on all ranks"""

    def __init__(self, rank: int, count: int, divide: str = NOTHING) -> None:
        if count < 1:
            raise UserError(f"there are 1 rank or more, not {count}")
        if divide not in DIVIDES:
            raise UserError(f"ranks divide {', '.join(DIVIDES)}, not {divide}")
        self.rank = self.local = rank
        self.count = count
        self.divide = divide

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.count}"

    # Exchanges of tensors -------------------------------------------------------------------------------------
    @abstractmethod
    def gather(self, mine: np.ndarray, sizes: Sequence[int], into: np.ndarray) -> None:
        """Write the bytes of every rank, in rank order, to ``into``. mine: this rank's bytes, ``sizes[rank]`` of them.
        Ranks in threads raise RanksDiverged if a rank has failed, or sends another number of bytes."""

    @abstractmethod
    def swap(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send ``parts[i]`` (bytes) to rank i; return the parts that this rank receives, in the senders' order.
        All parts that one rank receives have one size. Raises RanksDiverged as ``gather`` does."""

    def require_alike(self, what: str) -> None:
        """Raise RanksDiverged, on all ranks, if the ranks do not call this method with the same text ``what``.
        The text describes the exchange that a rank is about to make. Only its first bytes are compared (LONGEST)."""
        import numpy as np

        mine = np.frombuffer(what.encode()[:LONGEST].ljust(LONGEST), np.uint8)
        found = np.empty((self.count, LONGEST), np.uint8)
        self.gather(mine, (LONGEST,) * self.count, found.reshape(-1))
        if (found != mine).any():
            texts = [row.tobytes().decode(errors="replace").strip() for row in found]
            other = next(i for i, text in enumerate(texts) if text != texts[0])
            raise RanksDiverged(f"the ranks have parted: rank 0 is at {texts[0]}, rank {other} at {texts[other]}")

    # Agreements -----------------------------------------------------------------------------------------------
    @abstractmethod
    def agree(self, value: Any) -> list[Any]:
        """Send ``value``, which pickle can store, to all ranks; return all ranks' values, in rank order.
        Ranks in threads raise RanksDiverged if a rank has failed."""

    @abstractmethod
    def fail(self, code: int = 1, why: str = "") -> None:
        """Tell the other ranks that this one has failed, so that they end, too.
        code: the exit code of processes. why: a text for stderr, where processes end at once."""

    def when_failed(self, end: Callable[[], None]) -> None:  # noqa: B027 - not abstract: mostly nothing is to be done
        """Have ``end`` called once a rank that shares this process has failed.
        It ends waits that ``fail`` does not know, such as those of a GPU. By default no other rank shares the process,
        which ends as a whole."""
