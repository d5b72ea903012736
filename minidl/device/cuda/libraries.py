"""Finding the vendor's shared libraries where pip, conda or the system has put them."""

import ctypes
from pathlib import Path

from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from minidl.errors import DeviceError

BUILTINS = "libnvrtc-builtins.so.*"


def preload() -> None:
    """Load the libraries that cuDNN needs first: cuBLAS, and the compiler NVRTC. Raises DeviceError without cuBLAS."""
    for name in ("cublasLt", "cublas"):
        try:
            path = load_nvidia_dynamic_lib(name).abs_path
        except DynamicLibNotFoundError:
            raise DeviceError("cuBLAS is not installed: pip install nvidia-cublas, or nvidia-cublas-cu12 under "
                              "CUDA 12") from None
        if path is not None:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)  # with its symbols visible to what is loaded after it
    _preload_nvrtc()


def _preload_nvrtc() -> None:
    """cuDNN compiles attention by NVRTC, which looks for a second library by its bare name. In the layout of NVIDIA's
    wheels that name leads nowhere (seen with cuDNN 9.19), unless the library is loaded already."""
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError:
        return  # cuDNN has places of its own to look in, and ``attention_graphs`` tells of its failure
    if path is not None:
        for builtins in sorted(Path(path).resolve().parent.glob(BUILTINS)):
            ctypes.CDLL(str(builtins))
