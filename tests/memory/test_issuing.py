"""What is packed once for each signature and what anew for each call, without a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from watch import OPS

from bench.support.null_cuda import NullCuda
from minidl.device.cuda.programs import KernelStream, Programs
from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.launch import Kernel
from minidl.meta import float32, meta


@pytest.mark.parametrize("name", sorted(name for name in KERNELS if type(KERNELS[name]).issue is Kernel.issue))
def test_an_attribute_that_changes_from_call_to_call_is_a_number_of_its_kernel(name):
    # Otherwise the launches of the first call would be issued with its value for ever.
    if name in OPS:
        assert set(OPS[name].volatile) <= KERNELS[name].volatile


def test_each_call_has_its_own_addresses_and_numbers():
    given = []
    vendor = NullCuda()
    vendor.launch = lambda source, blocks, arguments, stream: given.append(arguments)
    stream = KernelStream(vendor, None, SimpleNamespace(upload=None))
    program = Programs(stream, KERNELS, tf32=False).kernel("fill_", [meta((64,), float32)], {"value": 1.0})
    for address, value in ((512, 1.0), (1024, 2.5)):
        program([address], {"value": value}, 0)
    first, second = given
    changed = {(a, b) for a, b in zip(first, second, strict=True) if a != b}
    assert changed == {(512, 1024), (np.float32(1.0), np.float32(2.5))}
    assert all(type(a) is type(b) is np.float32 for a, b in changed if a == 1.0)  # of the width in the signature
