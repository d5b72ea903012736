"""A check of Numba's environment variables, made before a device needs compiled kernels.

Numba reads these variables when it is imported, but fails only where it first uses them, in the middle of a step.
Nothing is imported unless one of the variables is set.
"""

import os
from importlib import import_module

from minidl.errors import UserError

THREADS, LAYER, DISABLED = "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_DISABLE_JIT"
MOST_THREADS = 1024
POOLS = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}  # module of numba.np.ufunc
# What each name allows, as Numba's documentation has it.
LAYERS = {"default": tuple(POOLS), "tbb": ("tbb",), "omp": ("omp",), "workqueue": ("workqueue",), "safe": ("tbb",),
          "forksafe": ("tbb", "workqueue"), "threadsafe": ("tbb", "omp")}


def require_numba() -> None:
    """Raise UserError, naming the variable, for a setting under which no kernel can run."""
    if _number(DISABLED):
        raise UserError(f"{DISABLED}={os.environ[DISABLED]}: kernels and plans are compiled code; unset it")
    threads = _number(THREADS)
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UserError(f"{THREADS}={os.environ[THREADS]} must be from 1 to {MOST_THREADS}")
    layer = os.environ.get(LAYER)
    if layer is None:
        return
    if layer not in LAYERS:
        raise UserError(f"{LAYER}={layer} is none of {', '.join(LAYERS)}")
    if not any(map(_is_there, LAYERS[layer])):
        raise UserError(f"{LAYER}={layer}: this installation of Numba has none of {', '.join(LAYERS[layer])}")


def _number(name: str) -> int | None:
    """Return the value of a variable; None if it is not set or not a number (Numba ignores that too)."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def _is_there(layer: str) -> bool:
    try:
        import_module(f"numba.np.ufunc.{POOLS[layer]}")
    except ImportError:
        return False
    return True
