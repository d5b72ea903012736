"""Microseconds per allocate and free of the arena, on this machine. Knows two patterns; no tensors, no devices.

    python -m bench.allocator [--pairs 100000]

``stack`` frees in the reverse order of allocation, as a forward and backward pass does: every block is carved from, and
returns to, the same free block. ``mixed`` keeps about 500 blocks of the sizes of a convolutional network's tensors
alive and replaces one at a time, at random, so that the free index is long and every path of coalescing is taken.
"""

import argparse
import random
import time

from minidl.device.clock import NO_MARKS
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block

DEPTH = 500
ROUNDS = 5
SIZES = [4, 256, 2048, 65_536, 147_456, 401_408, 802_816, 1_605_632, 3_211_264]


def stack(pairs: int) -> tuple[float, int]:
    """Return the seconds that ``pairs`` allocations and frees take, last in first out, and the longest free list met.
    """
    arena = Arena(1 << 34)
    sizes = [SIZES[i % len(SIZES)] for i in range(DEPTH)]
    start = time.perf_counter()
    for _ in range(pairs // DEPTH):
        blocks = [arena.allocate(size, arena) for size in sizes]
        while blocks:
            block = blocks.pop()
            assert block is not None
            arena.free(block, NO_MARKS)
    return time.perf_counter() - start, 1


def mixed(pairs: int) -> tuple[float, int]:
    """Return the same two numbers as ``stack``, with ``DEPTH`` live blocks; one at a time is replaced at random."""
    random.seed(0)
    arena = Arena(1 << 34)
    live: list[Block] = []
    for _ in range(DEPTH):
        block = arena.allocate(random.choice(SIZES), arena)
        assert block is not None
        live.append(block)
    steps = [(random.randrange(DEPTH), random.choice(SIZES) * random.randint(1, 8), (i, i // 3, i // 5))
             for i in range(pairs)]
    start = time.perf_counter()
    for index, size, marks in steps:
        arena.free(live[index], marks)
        block = arena.allocate(size, arena)
        assert block is not None
        live[index] = block
    seconds = time.perf_counter() - start
    arena.check()
    return seconds, sum(block.owner is None for block in arena.blocks())


def main() -> None:
    """Print the table: the best of several rounds, since other work on the machine only ever adds time."""
    parser = argparse.ArgumentParser(description="Microseconds per allocate and free of the arena.")
    parser.add_argument("--pairs", type=int, default=100_000, help="allocations a round (default 100000)")
    pairs = max(parser.parse_args().pairs // DEPTH, 1) * DEPTH
    print(f"{'pattern':<10}{'live blocks':>12}{'free blocks':>12}{'us per pair':>13}")
    for pattern, live in ((stack, f"0..{DEPTH}"), (mixed, str(DEPTH))):
        rounds = [pattern(pairs) for _ in range(ROUNDS)]
        print(f"{pattern.__name__:<10}{live:>12}{rounds[0][1]:>12}{min(r[0] for r in rounds) / pairs * 1e6:>13.2f}")


if __name__ == "__main__":
    main()
