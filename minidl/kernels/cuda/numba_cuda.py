"""The one place that imports numba-cuda, also in spawned processes, which import it through the compiler.

numba-cuda is in maintenance: 0.30 uses ``numpy.row_stack`` when it first compiles, which NumPy 2.5 has removed, and a
NumPy time without a unit, which makes 2.5 warn. While numba-cuda is imported, this module restores that name and
silences that warning; afterwards NumPy is unchanged. The extras ``cuda12`` and ``cuda13`` end at the versions that all
kernels were compiled with. Knows no kernel.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

Intrinsic = Callable[[Callable[..., Any]], Callable[..., Any]]  # a decorator
REMOVED = {"row_stack": "vstack"}  # removed names of NumPy, and their replacements
WARNED = "The 'generic' unit for NumPy timedelta is deprecated"
ARRAYS = "numba.cuda.np.arrayobj"  # the module that uses them; the compiler would import it later


@contextmanager
def _older_numpy() -> Iterator[None]:
    """Restore, inside a ``with`` block, NumPy's removed names, such as ``row_stack``, and silence its warning."""
    missing = [name for name in REMOVED if not hasattr(np, name)]
    for name in missing:
        setattr(np, name, getattr(np, REMOVED[name]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=WARNED, category=DeprecationWarning)
            yield
    finally:
        for name in missing:
            delattr(np, name)


def _imported() -> tuple[Any, ModuleType, Any, Intrinsic]:
    """Import and return numba.cuda, its modules ``compiler`` and ``dispatcher``, and its decorator ``intrinsic``."""
    with _older_numpy():
        modules = [import_module(name) for name in ("numba.cuda", "numba.cuda.compiler", "numba.cuda.dispatcher",
                                                    "numba.cuda.extending", ARRAYS)]
    return modules[0], modules[1], modules[2], modules[3].intrinsic


cuda, compiler, dispatcher, intrinsic = _imported()
