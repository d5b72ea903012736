"""How well the packer does on strips that are known to be full (``bench.support.strips``), and in what time.

    python -m bench.packing > bench/results/packing.md        # half a minute on one core

Seconds are the processor's, on one core; the limits are in units of work, so what is packed is the same anywhere.
"""

import argparse
from collections.abc import Iterator
from time import process_time

import numpy as np

from bench.support.strips import KINDS, cut
from minidl.lab.placement import MOST_ORDERS, SEARCHES
from minidl.planning.packing.greedy import greedy
from minidl.planning.packing.residencies import addresses
from minidl.planning.packing.solve import pack, pack_low
from minidl.planning.packing.strip import Strip, check, most_live, strip

# Share that is full, whether each piece is smaller by a share of its own, and for how long is looked: in units of work,
# of which some five hundred million are done in a second.
CASES = [(1.0, False, 2_000_000_000), (0.99, False, 1_000_000_000), (0.99, True, 1_000_000_000),
         (0.97, True, 1_000_000_000)]
PIECES = (150, 450)
ORDERS = 2_000_000
MOST_PAIRS = 1 << 40  # of comparisons in greedy orders: all of them are tried
RESIDENCIES = (400, 800, 1600, 3200, 6400)


def packed(that: Strip, work: int) -> tuple[bool, float]:
    """Pack a strip; return True if all its rectangles lie in it, and the seconds. Checks that none overlap."""
    start = process_time()
    offset, over = pack(that, orders=ORDERS, searches=work)
    seconds = process_time() - start
    if not over:
        check(that, offset)
    return not over, seconds


def tables(strips: int) -> None:
    """Print which share of the strips is packed, and the seconds that packing takes."""
    for fill, shrink, work in CASES:
        how = "each piece smaller by a share of its own" if shrink else "the rest is free above"
        print(f"\n{fill:.0%} full{'' if fill == 1 else ', ' + how}; at most {work / 1e9:g} thousand million units of "
              "work:\n\n| kind | pieces | packed | median seconds | slowest |\n|---|--:|--:|--:|--:|")
        for kind in KINDS:
            many = max(1, strips // 5) if kind == "mosaic" else strips
            for pieces in PIECES if kind != "mosaic" else PIECES[:1]:
                results = [packed(cut(seed, pieces, kind, fill=fill, shrink=shrink), work)
                           for seed in range(100, 100 + many)]
                times = [seconds for _, seconds in results]
                print(f"| {kind} | {pieces} | {sum(found for found, _ in results)} of {many} "
                      f"| {np.median(times):.2f} | {max(times):.1f} |", flush=True)


def growth() -> None:
    """Print how long packing takes for residencies that do not fit, where it uses up all of its allowed work."""
    print("\nAddresses for a mosaic's residencies, for which none are found, so that all work is used up (beyond 2,000 "
          "there is\nno search, only orders):\n\n| residencies | seconds |\n|--:|--:|")
    for count in RESIDENCIES:
        that = cut(0, count, "mosaic", steps=2 * count, height=2 * count)
        notes = np.stack([np.arange(len(that.size)), that.first, that.last, np.full(len(that.size), -1)], axis=1)
        nobody = np.zeros(len(that.size), np.bool_)
        start = process_time()
        addresses(notes, 2 * count, np.maximum(that.size, that.room // 9999), born_before=nobody, outlives=nobody,
                  successor=np.full(len(nobody), -1), room=that.room)
        print(f"| {len(that.size):,} | {process_time() - start:.2f} |", flush=True)


def lifetimes() -> Iterator[tuple[str, Strip]]:
    """Yield strips of random lifetimes, whose sizes and lengths vary widely, and ten copies of one full strip.
    The copies are in use at the same time, and together they fill ten times its room."""
    for count in (4_000, 20_000):
        draw = np.random.default_rng(count)
        first = draw.integers(0, 2 * count, count)
        last = np.minimum(first + draw.geometric(20 / count, count), 2 * count)
        yield f"{count:,} random lifetimes", strip(first, last, 512 * draw.geometric(1e-3, count), 0)
    one = cut(100, 150)
    yield "ten copies of a full strip", one.of(np.tile(np.arange(len(one.size)), 10))


def beside_greedy() -> None:
    """Print the room that greedy orders need and the room that is planned, as shares beyond the bytes in use."""
    print("\nThe room that is needed beyond the most bytes in use: with the best of four orders under first fit and "
          "under\nbest fit, with best fit in the order of time, as an allocator sees it, and as planned:\n\n| "
          "lifetimes | first fit | best fit | in order of time | planned | seconds |\n|---|--:|--:|--:|--:|--:|")
    for name, that in lifetimes():
        highest = [int((offset + that.size).max()) / most_live(that) - 1 for offset in greedy(that, MOST_PAIRS)]
        half = len(highest) // 2
        start = process_time()
        planned = pack_low(that, orders=MOST_ORDERS, searches=SEARCHES)
        seconds = process_time() - start
        check(that._replace(room=int((planned + that.size).max())), planned)
        shares = (min(highest[:half]), min(highest[half:]), highest[half + 2],
                  int((planned + that.size).max()) / most_live(that) - 1)
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in shares)} | {seconds:.1f} |", flush=True)


def main() -> None:
    """Read the command line, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strips", type=int, default=5, help="of each kind and size; mosaics a fifth, of 150")
    strips = parser.parse_args().strips
    print("# Packing\n\nMade by `python -m bench.packing`: strips of 1,024 steps and 1,024 units of memory, cut into "
          "pieces that are\nto be packed again. What counts as packed was checked by a sweep over the steps.\n"
          "Seconds are the processor's, on one core.")
    pack(cut(0, 40, "mosaic", fill=0.97), orders=10**6, searches=10**8)  # compiles
    tables(strips)
    beside_greedy()
    growth()


if __name__ == "__main__":
    main()
