"""Find and load the vendor's shared libraries, installed by pip, conda or the system."""

import ctypes
from pathlib import Path

from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from minidl.errors import DeviceError

BUILTINS = "libnvrtc-builtins.so.*"


def preload() -> None:
    """Load the libraries that cuDNN needs: cuBLAS, and the compiler NVRTC. Raises DeviceError without cuBLAS."""
    for name in ("cublasLt", "cublas"):
        try:
            path = load_nvidia_dynamic_lib(name).abs_path
        except DynamicLibNotFoundError:
            raise DeviceError("cuBLAS is not installed: pip install nvidia-cublas, or nvidia-cublas-cu12 under "
                              "CUDA 12") from None
        if path is not None:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)  # its symbols are visible to libraries loaded later
    _preload_nvrtc()


def _preload_nvrtc() -> None:
    """Load the library that NVRTC, with which cuDNN compiles attention, looks for by its bare name.
    In NVIDIA's wheels NVRTC cannot find it by that name (seen with cuDNN 9.19), unless it is already loaded."""
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError:
        return  # cuDNN may find it elsewhere; if not, ``attention_graphs`` reports the failure
    if path is not None:
        for builtins in sorted(Path(path).resolve().parent.glob(BUILTINS)):
            ctypes.CDLL(str(builtins))
