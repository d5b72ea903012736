"""``pytest -m gpu``: what of the GPU check (``bench/gpu.py``) is right or wrong. Skipped without a GPU.

The parts are those of ``bench/gpu_check``, which ``test_gpu_check`` rehearses on a vendor without a GPU.
"""

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from swapping import rounds_of_swapping

from bench.gpu_check.ops import TOLERANCE
from bench.gpu_check.parts import PARTS, run
from bench.gpu_check.setting import Record, Setting, Training
from bench.gpu_check.sizes import QUICK
from minidl.device.cuda import missing

LACKING = missing.message()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(LACKING is not None, reason=str(LACKING))]

SMALL = replace(
    QUICK, identity=(Training("resnet18", 32, side=64), Training("vgg11", 8, side=64), Training("bert-tiny", 32)),
    mirrored=(Training("lenet", 8), Training("resnet18", 4, side=64), Training("vgg11", 2, side=64),
              Training("bert-tiny", 2, length=64), Training("unet-small", 2, side=48)))


def setting(**sizes):
    return Setting("cuda", replace(SMALL, **sizes), Path("unused"))


def failures(name, given):
    """What a part finds to be wrong, or leaves out."""
    record = Record()
    run(PARTS[name], given, record)
    return record.failures + record.unfinished


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_operation_is_near_its_formula_whatever_was_in_its_output_before(dtype):
    assert not failures("ops", setting(dtypes=(dtype,)))


def test_a_small_network_has_the_losses_that_it_has_on_the_cpu():
    assert not failures("properties", setting())


@pytest.mark.parametrize("precision", QUICK.precisions)
@pytest.mark.parametrize("training", SMALL.identity, ids=lambda training: training.model)
def test_every_policy_gives_the_bits_of_an_unmanaged_run(training, precision):
    assert not failures("identity", setting(identity=(training,), precisions=(precision,)))


@pytest.mark.parametrize("training", SMALL.mirrored, ids=lambda training: training.model)
def test_losses_and_gradients_are_as_near_to_float64_as_those_of_pytorch(training):
    pytest.importorskip("torch")
    assert not failures("models", setting(mirrored=(training,)))


# The order of streams ---------------------------------------------------------------------------------------------
def test_copies_wait_for_kernels_and_kernels_for_copies():
    for _ in range(3):
        found, right, moved = rounds_of_swapping(setting(), rows=8 << 20)
        assert moved > 0 and all((a == b).all() for a, b in zip(found, right, strict=True))


# Other libraries --------------------------------------------------------------------------------------------------
def cupy_library():
    cupy = pytest.importorskip("cupy")
    return cupy.asarray, cupy.from_dlpack, cupy.asnumpy


def numba_library():
    from minidl.kernels.cuda.numba_cuda import cuda  # which keeps NumPy's warnings of its import to itself

    return cuda.to_device, cuda.as_cuda_array, lambda array: array.copy_to_host()


def torch_library():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return (lambda array: torch.as_tensor(array).cuda()), torch.from_dlpack, lambda tensor: tensor.cpu().numpy()


@pytest.mark.parametrize("library", [cupy_library, numba_library, torch_library])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8"])
def test_arrays_of_other_libraries_are_taken_and_given(library, dtype):
    to_gpu, take, to_host = library()
    values = np.arange(24).reshape(2, 3, 2, 2).astype(dtype)
    with setting().runtime(memory_budget="64MiB") as runtime:
        tensor = runtime.tensor(to_gpu(values))
        assert tensor.numpy().dtype == values.dtype and tensor.numpy().tolist() == values.tolist()
        assert to_host(take(tensor)).tolist() == values.tolist()


def test_bfloat16_is_given_to_pytorch_and_taken_from_it():
    torch = pytest.importorskip("torch")
    values = np.arange(24).reshape(2, 3, 4).astype(ml_dtypes.bfloat16)
    with setting().runtime(memory_budget="64MiB") as runtime:
        given = torch.from_dlpack(runtime.tensor(values))
        assert given.is_cuda and given.dtype is torch.bfloat16
        assert given.float().cpu().numpy().tolist() == values.tolist()
        taken = runtime.tensor(given.transpose(0, 1))
        assert taken.numpy().dtype == values.dtype and taken.numpy().tolist() == values.swapaxes(0, 1).tolist()
