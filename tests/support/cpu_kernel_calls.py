"""Call single CPU kernels, on operands of any layout, with poisoned outputs."""

from collections.abc import Callable

import numpy as np

from bench.support.kernel_cases import OPS, shared_bytes
from minidl import meta as metas
from minidl.kernels.cpu import KERNELS
from minidl.meta import ALIGNMENT, meta


def poisoned(shape, dtype):
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(0xFF)
    return array


def workspace(nbytes):
    raw = np.full(nbytes + ALIGNMENT, 0xFF, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + nbytes]


def describe(array):
    return meta(array.shape, metas.DTYPES[array.dtype.name])


def strided(array):
    """Return the same values with reversed dimension order inside a wider array, as permute and narrow produce."""
    wide = np.full((*array.shape[:0:-1], array.shape[0] + 3) if array.ndim else (), 99, array.dtype)
    view = wide[..., 2:-1].T if array.ndim else wide
    view[...] = array
    return view


def call(name, inputs, attrs, *, kernel: Callable[..., None] | None = None, donate=None):
    """Run a kernel on poisoned outputs and return these (of an in-place one: its written inputs); check other inputs.
    """
    op = OPS[name]
    if op.mutates is not None:
        inputs = [a.copy() if a.flags.c_contiguous else a for a in inputs]
        (kernel or KERNELS[name])(*inputs, **attrs)
        return [inputs[i] for i in op.mutates(len(inputs))]
    inferred = op.infer(*map(describe, inputs), **attrs)
    outputs = [poisoned(m.shape, m.dtype.name) for m in (inferred if isinstance(inferred, tuple) else (inferred,))]
    if donate is not None:
        output, source = donate
        inputs = [a.copy() if i == source else a for i, a in enumerate(inputs)]
        outputs[output] = inputs[source].reshape(outputs[output].shape)
    before = [a.copy() for a in inputs]
    (kernel or KERNELS[name])(*outputs, *inputs, **attrs)
    for i, (a, b) in enumerate(zip(inputs, before, strict=True)):
        assert (donate is not None and i == donate[1]) or a.tobytes() == b.tobytes(), f"{name} wrote its input {i}"
    return outputs


def same_bytes_over_an_input(case, dtype):
    """Run a case with each allowed donation, on contiguous and strided operands; compare with separate outputs."""
    inputs = case.inputs(dtype)
    plain = call(case.name, inputs, case.attrs)
    for output, source in shared_bytes(case.name, list(map(describe, inputs)), case.attrs):
        for given in (inputs, [a if i == source else strided(a) for i, a in enumerate(inputs)]):
            donated = call(case.name, given, case.attrs, donate=(output, source))
            assert [a.tobytes() for a in donated] == [a.tobytes() for a in plain], f"output {output} over {source}"
