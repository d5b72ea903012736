"""The files that a reader meets in one managed call, in the order of the call.

    python -m bench.reading              # a call that evicts, one that swaps in, one that replays: files and lines
    python -m bench.reading --path in    # the functions of the one that swaps in, as they call each other

``bench/support/walk`` traces the calls. ``docs/reading.md`` tells the same in words.
"""

from __future__ import annotations

import argparse

from bench.support.walk import KINDS, typical


def main() -> None:
    """Read the command line, and print the files or functions of the calls."""
    parser = argparse.ArgumentParser(description="the files that one managed call passes through")
    parser.add_argument("--path", choices=KINDS, help="print the functions of one kind of call")
    args = parser.parse_args()
    if args.path:
        for depth, file, function in typical(args.path).steps:
            print(f"{'  ' * depth}{file}:{function}")
        return
    print("| a call that | policy | operation | files | lines of these | changes of file | functions called |")
    print("|---|---|---|---|---|---|---|")
    for kind, (policy, does) in KINDS.items():
        walk = typical(kind)
        print(f"| {does} | {policy} | {walk.op} | {len(walk.files)} | {walk.lines:,} | {walk.changes} | "
              f"{len(walk.steps)} |")


if __name__ == "__main__":
    main()
