"""Find out which requirements of the CUDA device this machine lacks, and say so in one line. Imports none of them."""

import ctypes
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

PACKAGES = {"numba_cuda": "numba-cuda", "cuda.core": "cuda-core", "cupy": "cupy", "cudnn": "nvidia-cudnn-frontend"}
DRIVERS = ("libcuda.so.1", "nvcuda.dll")
CUDA_13_DRIVER = 580  # the first driver that runs CUDA 13


def packages() -> list[str]:
    """Return the names of the required distributions that are not installed."""
    return [name for module, name in PACKAGES.items() if not _found(module)]


def has_driver() -> bool:
    """Return True if NVIDIA's driver can be loaded."""
    return _driver() is not None


def _driver() -> Any:
    """Return NVIDIA's driver as a library; None if it cannot be loaded."""
    for name in DRIVERS:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def driver_cuda() -> int | None:
    """Return the newest CUDA version that the driver runs, as it counts (13.0 is 13000); None if that is unknown."""
    library = _driver()
    if library is None or not hasattr(library, "cuInit") or not hasattr(library, "cuDriverGetVersion"):
        return None
    found = ctypes.c_int()
    return None if library.cuDriverGetVersion(ctypes.byref(found)) else found.value


def toolkit_cuda() -> int | None:
    """Return the major version of CUDA that the installed packages are for; None if they are not installed."""
    try:
        return int(version("cuda-bindings").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return None


def message() -> str | None:
    """Return what is missing or does not fit, and how to install it; None if nothing is missing."""
    absent = packages()
    if not has_driver():
        return (f"--device cuda needs an NVIDIA GPU and its driver, and {DRIVERS[0]} cannot be loaded; use --device "
                "cpu to train here, or --device sim:<gpu> to study a GPU's memory and time")
    if absent:
        return (f"--device cuda needs {', '.join(absent)}: pip install 'minidl[cuda13]' (or 'minidl[cuda12]' for a "
                f"driver older than {CUDA_13_DRIVER})")
    runs, wanted = driver_cuda(), toolkit_cuda()
    if runs is None:
        return f"--device cuda needs NVIDIA's driver, but the loaded {DRIVERS[0]} has no cuInit: it is a stub"
    if wanted is not None and runs // 1000 < wanted:
        return (f"--device cuda: this driver runs CUDA up to {runs // 1000}.{runs % 1000 // 10}, but the installed "
                f"packages are for CUDA {wanted}: pip install 'minidl[cuda12]', or install driver {CUDA_13_DRIVER} or "
                "newer")
    return None


def cupti_message() -> str | None:
    """Return a message that names the package that timing by CUPTI needs; None if it is installed."""
    if _found("cupti"):
        return None
    return f"timing by CUPTI needs cupti-python: pip install 'minidl[cupti]' (for drivers from {CUDA_13_DRIVER} on)"


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
