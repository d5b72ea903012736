"""Products over a stub of cuBLAS: each on the stream and in the workspace that were set, with the arguments that it has
in ``cublas_api.h``. The stub keeps the library's rule that a change of the stream takes the workspace away."""

import ctypes

import pytest
from stub_libraries import compiled, notes

from minidl.device.cuda.cublas import Cublas
from minidl.device.cuda.seam import Gemm
from minidl.errors import DeviceError

STREAM, WORKSPACE, NBYTES = 0xABC0, 1 << 40, 32 << 20
C, A, B = 3 << 40, (1 << 41) + 512, (1 << 42) + 4  # beyond 32 bits


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return compiled("libcublas.so.13", tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def opened(path, tmp_path, monkeypatch):
    """A handle, and what the library was told since; a module's library has one file of notes."""
    log = path.with_suffix(".log")
    monkeypatch.setenv("STUB_LOG", str(log))
    cublas = Cublas(ctypes.CDLL(str(path)))
    start = len(notes(log))
    yield cublas, lambda: notes(log)[start:]
    cublas.close()
    cublas.close()
    assert [call for call, _ in notes(log)[start:]].count("cublasDestroy") == 1


PRODUCTS = [
    (Gemm("float32", False, True, 5, 6, 7, 8, 9, 10), 0, 68, 0.0),
    (Gemm("float32", False, True, 5, 6, 7, 8, 9, 10, tf32=True), 0, 77, 0.0),
    (Gemm("bfloat16", True, False, 5, 6, 7, 8, 9, 10, accumulate=True), 14, 68, 1.0),
    (Gemm("float16", True, True, 5, 6, 7, 8, 9, 10, 1 << 33, 0, 1 << 34, 3), 2, 68, 0.0),
    (Gemm("float64", False, False, 5, 6, 7, 8, 9, 10, 11, 12, 13, 4, accumulate=True), 1, 70, 1.0)]


def test_every_product_runs_on_the_stream_and_in_the_workspace_that_were_set(opened):
    cublas, told = opened
    cublas.work_in(STREAM, WORKSPACE, NBYTES)
    for product, *_ in PRODUCTS:
        cublas.gemm(product, C, A, B)
    found = told()
    assert len(found) == len(PRODUCTS) and cublas.version == 130000
    for (call, given), (p, kind, compute, beta) in zip(found, PRODUCTS, strict=True):
        assert (call, given["stream"], given["workspace"], given["bytes"]) == ("cublasGemm", STREAM, WORKSPACE, NBYTES)
        assert (given["a"], given["b"], given["c"]) == (A, B, C)
        assert (given["ta"], given["tb"]) == (p.transpose_a, p.transpose_b)
        assert [given[key] for key in ("m", "n", "k", "lda", "ldb", "ldc", "sa", "sb", "sc", "count")] == [
            p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.step_a, p.step_b, p.step_c, p.count]
        assert (given["kind"], given["compute"], given["algorithm"]) == (kind, compute, -1)
        assert (given["alpha"], given["beta"]) == (1.0, beta)


@pytest.mark.parametrize(("call", "words"), [
    ("cublasGemm", r"^cublasGemm of 5 x 6 x 7 in float32: the function failed to launch on the GPU \(13\)$"),
    ("cublasSetWorkspace", r"^cublasSetWorkspace: the function failed"), ("cublasSetStream", r"^cublasSetStream: the")])
def test_what_fails_is_a_device_error_with_the_call_and_its_code(opened, monkeypatch, call, words):
    cublas, _ = opened
    monkeypatch.setenv("STUB_CUBLAS_FAILS", call)
    with pytest.raises(DeviceError, match=words):
        cublas.work_in(STREAM, WORKSPACE, NBYTES)
        cublas.gemm(PRODUCTS[0][0], C, A, B)
    monkeypatch.delenv("STUB_CUBLAS_FAILS")


def test_a_library_that_cannot_be_opened_says_so(path, monkeypatch):
    monkeypatch.setenv("STUB_LOG", str(path.with_suffix(".log")))
    monkeypatch.setenv("STUB_CUBLAS_FAILS", "cublasCreate")
    with pytest.raises(DeviceError, match=r"^cublasCreate: the function failed to launch on the GPU \(13\)$"):
        Cublas(ctypes.CDLL(str(path)))
