"""The check of one GPU: see ``bench/gpu_check/command.py``, or --help.

    python bench/gpu.py [--parts ops models ...] [--device cuda] [--quick] [--minutes 10] [--out bench/results]
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    if (root := str(Path(__file__).resolve().parent.parent)) not in sys.path:  # run as a file: the packages lie there
        sys.path[0] = root
    from bench.gpu_check.command import main

    sys.exit(main())
