"""The link between a CPU device's arena and its host memory, measured: what copies reach while nothing else runs.

Both ends are this machine's own memory, so the "link" is a copy from memory to memory. Blocks are large enough not to
stay in a cache; the latency is that of handing a copy to its worker and hearing that it is done. Knows bytes and a
clock; no tensors and no policy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from time import perf_counter

import numba

from minidl.device.clock import COPY_IN, COPY_OUT
from minidl.device.cpu.numerics import Numerics
from minidl.device.cpu.workers import WorkerStreams
from minidl.device.profiles import Profile
from minidl.outside.machine import processors
from minidl.plan.costs import Costs

BLOCK_BYTES = 32 * 2**20
REPEATS = 5
MOST_LOST = 0.9  # of a second of copies


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes a second out of the arena and into it, one direction at a time, and seconds that the least copy takes."""

    out_bandwidth: float
    in_bandwidth: float
    latency_s: float


def measure(nbytes: int = BLOCK_BYTES, repeats: int = REPEATS) -> Link:
    """Medians over ``repeats`` copies of ``nbytes`` each way, about 0.1 seconds in all."""
    numerics = Numerics(nbytes, nbytes)
    block = ((0, nbytes),)
    out, into = partial(numerics.copy_out, block, 0), partial(numerics.copy_in, 0, block)
    numerics.poison(0, nbytes)
    out()  # now both ends have their pages
    streams = WorkerStreams()

    def hand_over() -> None:
        streams.synchronize(COPY_OUT, streams.issue(COPY_OUT, 0.0, partial(numerics.copy_out, ((0, 1),), 0)))

    hand_over()  # now there is a worker
    latency = median(_seconds(hand_over) for _ in range(10 * repeats))
    streams.close()
    return Link(nbytes / median(_seconds(out) for _ in range(repeats)),
                nbytes / median(_seconds(into) for _ in range(repeats)), latency)


def both_bandwidth(nbytes: int = BLOCK_BYTES, repeats: int = REPEATS) -> float:
    """Bytes a second, in and out together, when copies run both ways at once."""
    out, into = Numerics(nbytes, nbytes), Numerics(nbytes, nbytes)
    streams, block = WorkerStreams(), ((0, nbytes),)

    def both() -> None:
        position = streams.issue(COPY_OUT, 0.0, partial(out.copy_out, block, 0))
        streams.synchronize(COPY_IN, streams.issue(COPY_IN, 0.0, partial(into.copy_in, 0, block)))
        streams.synchronize(COPY_OUT, position)

    both()
    seconds = median(_seconds(both) for _ in range(repeats))
    streams.close()
    return 2 * nbytes / seconds


def contention() -> float:
    """Seconds that kernels lose for each second that a copy runs beside them: where they take all processors, the copy
    has one of these."""
    count = processors()
    threads = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined] # get_num_threads() would start them
    return min(1.0 / count, MOST_LOST) if threads >= count else 0.0


def _seconds(work: Callable[[], None]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


_measured = cache(measure)  # once in a process


def with_contention(costs: Costs) -> Costs:
    """The same costs with what copies take from kernels on this machine."""
    return replace(costs, contention=contention())


def with_measured_link(profile: Profile) -> Profile:
    """A profile whose link is this machine's."""
    link = _measured()
    return replace(profile, link_out_bandwidth=link.out_bandwidth, link_in_bandwidth=link.in_bandwidth,
                   link_latency_s=link.latency_s)
