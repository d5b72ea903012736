"""numba-cuda, imported: the one place that does so, in spawned processes too, which import it through the compiler.

numba-cuda is in maintenance: 0.30 names ``numpy.row_stack`` when it first compiles, which NumPy 2.5 has removed, and
asks NumPy for a time without a unit, of which 2.5 warns. Here NumPy has that name while the module that wants it is
imported, and that warning is not given; afterwards NumPy is as it was. The extras ``cuda12`` and ``cuda13`` end at the
versions that all kernels were compiled with. Knows no kernel.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

Intrinsic = Callable[[Callable[..., Any]], Callable[..., Any]]  # a decorator
REMOVED = {"row_stack": "vstack"}  # names that NumPy had, and what they stood for
WARNED = "The 'generic' unit for NumPy timedelta is deprecated"
ARRAYS = "numba.cuda.np.arrayobj"  # what names them; the compiler would import it later


@contextmanager
def _older_numpy() -> Iterator[None]:
    """NumPy with the names that it has removed, and without the warning."""
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
    """(numba.cuda, its compiler, its dispatcher, ``intrinsic`` of its extensions)."""
    with _older_numpy():
        modules = [import_module(name) for name in ("numba.cuda", "numba.cuda.compiler", "numba.cuda.dispatcher",
                                                    "numba.cuda.extending", ARRAYS)]
    return modules[0], modules[1], modules[2], modules[3].intrinsic


cuda, compiler, dispatcher, intrinsic = _imported()
