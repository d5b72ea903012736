"""How much of PyTorch's own samples (OpInfo, ModuleInfo) runs on minidl: counts by dtype and outcome.

    python -m bench.peers [--samples 25] [--dtype float32]
"""

from __future__ import annotations

import argparse
from collections import Counter

from bench.support import modinfo, opinfo


def main() -> None:
    """Print the table, and each case whose outcome is wrong or unclear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=25, help="of each function, form and dtype, at most")
    parser.add_argument("--dtype", action="append", help="one or several; all by default")
    given = parser.parse_args()
    dtypes = tuple(given.dtype or opinfo.DTYPES_TRIED)
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
