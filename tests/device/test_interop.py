"""Tensors given to other libraries and taken from them: DLPack, ``__cuda_array_interface__``, bfloat16 among them."""

import gc

import ml_dtypes
import numpy as np
import pytest
from fake_cuda import JudgedCuda

from minidl import Runtime
from minidl.device import dlpack, profiles
from minidl.errors import UserError
from minidl.meta import bfloat16

SHAPES = [(), (1,), (3, 5), (2, 3, 4, 5), (0, 3)]


@pytest.fixture
def on_cpu():
    with Runtime("cpu:virtual", memory_budget="1MiB", host_memory=0, policy="none") as runtime:
        yield runtime


@pytest.fixture
def on_gpu():
    device = JudgedCuda(profiles.get("h200"), numerics=True)
    with Runtime(device, memory_budget="1MiB", host_memory=0, policy="none") as runtime:
        yield runtime


def values(shape):
    return np.random.default_rng(1).standard_normal(shape).astype(ml_dtypes.bfloat16)


class OnGpu:
    """An array of another library in the fake's memory, described in one of the ways, or both."""

    def __init__(self, device, array, *, strides=True, turned=False):
        self.vendor = device.vendor
        self.address = self.vendor.allocate(max(array.nbytes, 1))
        stream = self.vendor.stream()
        dense = np.ascontiguousarray(array)
        self.vendor.copy(self.address, dense.ctypes.data, dense.nbytes, self.vendor.streams[0])
        self.vendor.synchronize(self._after(stream))
        self.strides = strides
        self.array = dense.transpose() if turned else dense

    def _after(self, stream):
        event = self.vendor.event()
        self.vendor.record(event, self.vendor.streams[0])
        return event


class ByInterface(OnGpu):
    """As Numba describes it: no DLPack."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.array.shape, "typestr": self.array.dtype.str, "data": (self.address, False),
                "version": 3, "strides": self.array.strides if self.strides else None}


class ByDlpack(OnGpu):
    """bfloat16 in a library that copies nothing to the host."""

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **options):
        if "dl_device" in options:
            raise BufferError("not to the host")
        strides = [s // 2 for s in self.array.strides]
        return dlpack.Bfloat16(self, self.address, self.array.shape, strides, (2, 0)).__dlpack__()


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_comes_back_from_a_capsule_as_it_was(shape):
    array = values(shape)
    for lies in (array, array.transpose()):
        back = dlpack.to_host(dlpack.of_host(lies))
        assert back.dtype == lies.dtype and back.shape == lies.shape and back.tobytes() == lies.tobytes()


def test_what_is_given_away_lives_until_the_last_has_let_go_of_it():
    kept = dict(dlpack._given)
    exported = dlpack.of_host(values((3, 5)))
    capsule = exported.__dlpack__()
    del exported
    gc.collect()
    assert len(dlpack._given) == len(kept) + 1
    del capsule  # nobody took it
    assert dlpack._given.keys() == kept.keys()
    dlpack.to_host(dlpack.of_host(values((3, 5))))  # somebody took it, and has let go of it
    assert dlpack._given.keys() == kept.keys()


def test_bfloat16_is_refused_for_another_device():
    with pytest.raises(BufferError, match="cannot be given on device"):
        dlpack.of_host(values((2,))).__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_a_tensor_of_bfloat16_goes_to_pytorch_and_back(on_cpu, shape):
    torch = pytest.importorskip("torch")
    array = values(shape)
    given = torch.from_dlpack(on_cpu.tensor(array))
    assert given.dtype is torch.bfloat16 and given.float().numpy().tobytes() == array.astype(np.float32).tobytes()
    taken = on_cpu.tensor(given.t() if given.ndim == 2 else given)
    assert taken.dtype is bfloat16
    assert taken.numpy().tobytes() == (array.T if array.ndim == 2 else array).tobytes()


def test_other_dtypes_go_to_pytorch_and_back(on_cpu):
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "float64", "int64", "uint8"):
        array = np.arange(6).astype(dtype).reshape(2, 3)
        given = torch.from_dlpack(on_cpu.tensor(array))
        assert given.numpy().tolist() == array.tolist() and on_cpu.tensor(given).numpy().dtype == array.dtype


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_a_tensor_on_a_gpu_is_given_as_a_copy_in_its_memory(on_gpu, dtype):
    array = np.arange(24).reshape(2, 3, 2, 2).astype(dtype)
    tensor = on_gpu.tensor(array)  # it lies channels-last
    shared = on_gpu.device.share(tensor.storage)
    assert tensor.__dlpack_device__() == (2, 0)
    if dtype == "bfloat16":
        assert shared.__dlpack_device__() == (2, 0)
        with dlpack.borrowed(tensor) as lying:
            assert lying.device == (2, 0) and lying.shape == array.shape and lying.strides == (12, 4, 2, 1)
        with pytest.raises(AttributeError, match="use DLPack"):
            _ = tensor.__cuda_array_interface__
    else:
        assert shared.tolist() == array.tolist()
        assert tensor.__cuda_array_interface__["typestr"] == np.dtype(dtype).str


@pytest.mark.parametrize("strides", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_an_array_that_is_only_described_where_it_lies_is_taken(on_gpu, dtype, strides):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    assert on_gpu.tensor(ByInterface(on_gpu.device, array, strides=strides)).numpy().tolist() == array.tolist()
    turned = ByInterface(on_gpu.device, array, turned=True)
    assert on_gpu.tensor(turned).numpy().tolist() == array.transpose().tolist()


def test_bfloat16_on_a_gpu_is_taken_by_dlpack(on_gpu):
    array = values((3, 4))
    for turned in (False, True):
        taken = on_gpu.tensor(ByDlpack(on_gpu.device, array, turned=turned))
        assert taken.dtype is bfloat16
        assert taken.numpy().tobytes() == (array.transpose() if turned else array).tobytes()


def test_what_lies_where_a_device_cannot_reach_it_is_the_users_error(on_cpu, on_gpu):
    with on_cpu, pytest.raises(UserError, match="cannot read the memory of a ByInterface: copy it to the host first"):
        on_cpu.tensor(ByInterface(on_gpu.device, np.zeros(3)))
    with on_cpu, pytest.raises(UserError, match="cannot read the memory of a ByDlpack"):
        on_cpu.tensor(ByDlpack(on_gpu.device, values((3,))))


def test_what_is_no_array_is_refused_as_before(on_cpu):
    class Odd:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("no array")
    with pytest.raises(TypeError, match="no array"):
        on_cpu.tensor(Odd())
