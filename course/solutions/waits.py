"""Solutions of lesson 10."""

from __future__ import annotations

from virtual import Work, overlap

Bytes = list[tuple[int, int]]

# A: the copy out begins before the kernel that computes its bytes. B: the kernel that reads the bytes begins before
# their copy in ends. C: a kernel writes to the block while the copy out still reads it.
puzzles = {"A": "copy-out on compute", "B": "compute on copy-in", "C": "compute on copy-out"}


def starts(work: list[tuple[str, float, list[int]]]) -> list[float]:
    """After the stream's work before it, and after all that it waits for."""
    free: dict[str, float] = {}
    began: list[float] = []
    ends: list[float] = []
    for stream, seconds, after in work:
        began.append(max([free.get(stream, 0.0), *(ends[n] for n in after)]))
        free[stream] = began[-1] + seconds
        ends.append(free[stream])
    return began


def must_wait(earlier: tuple[str, Bytes, Bytes], later: tuple[str, Bytes, Bytes]) -> bool:
    """If they share bytes that one of them writes, and stream order does not help."""
    def meet(some: Bytes, others: Bytes) -> bool:
        return any(a < d and c < b for a, b in some for c, d in others)
    (stream, reads, writes), (other, other_reads, other_writes) = earlier, later
    return stream != other and (meet(writes, other_reads + other_writes) or meet(reads, other_writes))


def missing_wait(log: list[Work]) -> str:
    """The first later work that starts before an earlier one ends which it must wait for."""
    for number, later in enumerate(log):
        for earlier in log[:number]:
            if (earlier.stream != later.stream and later.start < earlier.end
                    and (overlap(earlier.writes, later.reads + later.writes)
                         or overlap(earlier.reads, later.writes))):
                return f"{later.stream} on {earlier.stream}"
    return ""
