"""What the CUDA device needs and this machine lacks, in one line. Imports none of it."""

import ctypes
from importlib.util import find_spec

PACKAGES = {"numba_cuda": "numba-cuda", "cuda.core": "cuda-core", "cupy": "cupy", "cudnn": "nvidia-cudnn-frontend"}
DRIVERS = ("libcuda.so.1", "nvcuda.dll")
CUDA_13_DRIVER = 580  # the first driver that runs CUDA 13


def packages() -> list[str]:
    """The distributions that are not installed."""
    return [name for module, name in PACKAGES.items() if not _found(module)]


def has_driver() -> bool:
    """Whether NVIDIA's driver can be loaded."""
    for name in DRIVERS:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def message() -> str | None:
    """What is missing and how to install it; None if nothing is."""
    absent = packages()
    if not has_driver():
        return (f"--device cuda needs an NVIDIA GPU and its driver, and {DRIVERS[0]} cannot be loaded; use --device "
                "cpu to train here, or --device sim:<gpu> to study a GPU's memory and time")
    if absent:
        return (f"--device cuda needs {', '.join(absent)}: pip install 'minidl[cuda13]' (or 'minidl[cuda12]' for a "
                f"driver older than {CUDA_13_DRIVER})")
    return None


def cupti_message() -> str | None:
    """What timing by CUPTI lacks; None if nothing."""
    if _found("cupti"):
        return None
    return f"timing by CUPTI needs cupti-python: pip install 'minidl[cupti]' (for drivers from {CUDA_13_DRIVER} on)"


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
