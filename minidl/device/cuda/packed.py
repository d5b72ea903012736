"""Kernels with a place for their arguments, so that a launch is one packing of numbers and one call of the driver.

Knows the driver's forms of an argument; no stream and no context.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any

from cuda.bindings import driver

from minidl.kernels.cuda.launch import DeviceFunction

WIDTH = 8  # bytes of the place of an argument, the longest one's
FORMS = {"int64": "q", "int32": "i4x", "float32": "f4x", "float64": "d"}  # of ``struct``, each of WIDTH bytes


class PackedKernel:
    """A loaded kernel and the memory that the driver reads its arguments from. Only one thread at a time may use it.

    function  the kernel in the driver's form
    pack      a function that stores the arguments of a launch, in the order of the source's signature
    pointers  the address of an array of pointers to the arguments, for ``cuLaunchKernel``
    """

    __slots__ = ("_memory", "function", "pack", "pointers")

    def __init__(self, source: DeviceFunction, kernel: Any) -> None:
        """kernel: the loaded ``cuda.core.Kernel``; it is kept, as its code ends with it."""
        count = len(source.signature)
        places = (ctypes.c_uint64 * count)()
        pointers = (ctypes.c_void_p * count)(*[ctypes.addressof(places) + WIDTH * i for i in range(count)])
        form = Struct("=" + "".join("Q" if kind[0] == "*" else FORMS[kind] for kind in source.signature))
        self.function = driver.CUfunction(int(kernel.handle))
        self.pack: Callable[..., None] = partial(form.pack_into, places, 0)
        self.pointers = ctypes.addressof(pointers)
        self._memory = kernel, places, pointers
