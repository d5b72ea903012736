"""How much of PyTorch's own samples (OpInfo, ModuleInfo) runs on minidl: counts by dtype and outcome.

    python -m bench.peers [--samples 25] [--dtype float32] [--edges]

``--edges``: the samples of functions with zeros, ties, NaN, infinity, denormals and other numbers at the edges.
"""

from __future__ import annotations

import argparse
from collections import Counter

from bench.support import edges, modinfo, opinfo


def main() -> None:
    """Print the table, and each case whose outcome is wrong or unclear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=25, help="of each function, form and dtype, at most")
    parser.add_argument("--dtype", action="append", help="one or several; all by default")
    parser.add_argument("--edges", action="store_true", help="with numbers at the edges, of the floating dtypes")
    given = parser.parse_args()
    dtypes = tuple(given.dtype or opinfo.DTYPES_TRIED)
    if given.edges:
        floats = tuple(name for name in dtypes if name in opinfo.TOLERANCES)
        outcomes = [("edges", case) for _, case in edges.cases(given.samples, floats)]
    else:
        outcomes = [("functions", case) for case in opinfo.cases(given.samples, dtypes)]
        floats = tuple(name for name in dtypes if name in ("float32", "float64"))
        outcomes += [("modules", case) for case in modinfo.cases(floats)]
    counts = Counter((what, case.dtype, case.kind) for what, case in outcomes)
    print("| samples of | dtype | " + " | ".join(opinfo.KINDS) + " |")
    print("|---|---|" + "--:|" * len(opinfo.KINDS))
    for what, dtype in dict.fromkeys((what, case.dtype) for what, case in outcomes):
        print(f"| {what} | {dtype} | " + " | ".join(f"{counts[what, dtype, kind]:,}" for kind in opinfo.KINDS) + " |")
    for _, case in outcomes:
        if case.kind in ("unclear", "wrong"):
            print(case)


if __name__ == "__main__":
    main()
