"""Finding the vendor's shared libraries where pip, conda or the system has put them."""

import ctypes

from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from minidl.errors import DeviceError


def preload_cublas() -> None:
    """Load cuBLAS with its symbols visible to what is loaded after it. Raises DeviceError if it is not installed."""
    for name in ("cublasLt", "cublas"):
        try:
            path = load_nvidia_dynamic_lib(name).abs_path
        except DynamicLibNotFoundError:
            raise DeviceError("cuBLAS is not installed: pip install nvidia-cublas, or nvidia-cublas-cu12 under "
                              "CUDA 12") from None
        if path is not None:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
