"""Threads that make batches before they are needed, in order, and statistics of their speed.

At most ``ahead`` batches are in progress or ready while a step runs: the host budget counts these. A batch of images is
cut into images, so that all threads work on the batch that is needed next. An error is raised when its batch is due,
and not before: so the failing batch does not depend on the threads.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Generic, Protocol, TypeVar

MOST_AHEAD = 4  # batches
HOST_SHARE = 0.25  # of the host budget, at most, for batches


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


B = TypeVar("B", bound=_Sized)


@dataclass(frozen=True, slots=True)
class Job(Generic[B]):
    """The work to make a batch of ``size`` examples: call all ``parts``, in any order; then ``done()`` returns it."""

    size: int
    parts: list[Callable[[], None]]
    done: Callable[[], B]


@dataclass
class Feed:
    """Threads that make batches before they are needed, and statistics of these threads.

    workers      the number of threads; busy_seconds: the sum of the time they have worked
    ahead        the number of batches made in advance; waited_seconds: time for which training has waited for batches
    made number of examples in the batches so far; peak_bytes: the most bytes of batches ahead at one time
    """

    workers: int
    ahead: int
    waited_seconds: float = 0.0
    busy_seconds: float = 0.0  # sum over all threads
    made: int = 0  # examples
    peak_bytes: int = 0  # the most bytes of batches ahead at one time
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def per_second(self) -> float | None:
        """Examples per second that the threads can make beside the training; None before the first example."""
        return self.made * self.workers / self.busy_seconds if self.busy_seconds else None

    def run(self, jobs: Iterator[Job[B]]) -> Iterator[B]:
        """Yield the batches of ``jobs``, in the jobs' order. Exhaust or close this generator to end the threads."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="data")
        waiting: deque[tuple[Job[B], list[Future[None]]]] = deque()
        try:
            while True:
                while len(waiting) <= self.ahead and (job := next(jobs, None)) is not None:
                    waiting.append((job, [pool.submit(self._timed, part) for part in job.parts]))
                if not waiting:
                    return
                start = perf_counter()
                job, futures = waiting.popleft()
                for future in futures:
                    future.result()
                self.waited_seconds += perf_counter() - start
                self.made += job.size
                batch = job.done()
                self.peak_bytes = max(self.peak_bytes, batch.nbytes * len(waiting))
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _timed(self, part: Callable[[], None]) -> None:
        start = perf_counter()
        part()
        seconds = perf_counter() - start
        with self._lock:
            self.busy_seconds += seconds


def batches_ahead(nbytes: int, host_memory: int) -> int:
    """Return how many batches of ``nbytes`` bytes are made in advance: at most 4, in a quarter of ``host_memory``."""
    return min(MOST_AHEAD, int(host_memory * HOST_SHARE) // max(nbytes, 1))
