"""Ranks: k programs that train one network together. Rank r holds slice r of what ``slices=k`` would cut.

``mpi()`` is for processes that mpiexec started, ``threads(k)`` for runtimes in threads of one process, and
``modelled(k)`` for one rank of k on a simulated device. See docs/ranks.md.
"""

from minidl.ranks.group import Ranks, RanksDiverged
from minidl.ranks.modelled import modelled
from minidl.ranks.mpi import mpi
from minidl.ranks.threads import threads

__all__ = ["Ranks", "RanksDiverged", "modelled", "mpi", "threads"]
