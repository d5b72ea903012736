"""Measure the copies between a CPU device's arena and its host memory, while nothing else runs.

Both ends are this machine's own memory, so the "link" is a copy from memory to memory. Blocks are larger than the
caches. The latency is the time to hand a copy to its worker and to learn that it is done. Knows bytes and a clock; no
tensors and no policy.
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
MOST_LOST = 0.9  # seconds that kernels lose for a second of copies, at most


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes per second out of the arena and into it, one direction at a time, and the seconds of the smallest copy."""

    out_bandwidth: float
    in_bandwidth: float
    latency_s: float


def measure(nbytes: int = BLOCK_BYTES, repeats: int = REPEATS) -> Link:
    """Return medians over ``repeats`` copies of ``nbytes`` each way, and of 10 times as many copies of one byte.
    It takes about 0.1 seconds."""
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
    """Return the bytes per second, in and out together, when copies run both ways at once: a median of ``repeats``."""
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
    """Return the seconds that kernels lose for each second of a copy beside them.
    If kernels use all processors, the copy takes one of them; else it costs nothing."""
    count = processors()
    threads = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined] # get_num_threads() would start them
    return min(1.0 / count, MOST_LOST) if threads >= count else 0.0


def _seconds(work: Callable[[], None]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


_measured = cache(measure)  # once in a process


def with_contention(costs: Costs) -> Costs:
    """Return the costs with this machine's contention: the seconds that kernels lose per second of a copy."""
    return replace(costs, contention=contention())


def with_measured_link(profile: Profile) -> Profile:
    """Return the profile with this machine's measured link."""
    link = _measured()
    return replace(profile, link_out_bandwidth=link.out_bandwidth, link_in_bandwidth=link.in_bandwidth,
                   link_latency_s=link.latency_s)
