"""``python stubbed_cuda.py FOLDER``: run the real vendor (``real.Cuda``) on stubs of NVIDIA's libraries in that folder.

It must run in its own process, which has loaded no driver. It prints the name of each check that holds, and fails
otherwise. The fake vendor's vector clocks (``fake_cuda``) check a training's calls to the seam, and the calls that
reach the libraries are compared with these, one by one: streams, events, addresses, sizes, workspaces, arguments, and
their order.
"""

import ctypes
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import stub_cudnn
from stub_libraries import notes

FOLDER = Path(sys.argv[1])
LOG = FOLDER / "log"
os.environ.update(STUB_LOG=str(LOG), STUB_CUDA_GPUS="2")
ctypes.CDLL(str(FOLDER / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
sys.modules["cudnn"] = stub_cudnn

import fake_cuda  # noqa: E402 - after the stubs
from cuda.core import ObjectCode  # noqa: E402
from fake_cuda import FakeCuda, WatchedCuda  # noqa: E402
from networks import Training  # noqa: E402

import minidl  # noqa: E402
from minidl.device import profiles  # noqa: E402
from minidl.device.cuda import libraries, real  # noqa: E402
from minidl.device.cuda.seam import Convolution, Gemm, PlanInfo  # noqa: E402
from minidl.errors import DeviceError  # noqa: E402
from minidl.kernels.cuda.compile import Compiler  # noqa: E402
from minidl.kernels.cuda.launch import DeviceFunction  # noqa: E402

LETTERS = {"int64": "l", "int32": "i", "float32": "f", "float64": "d"}
CONV = Convolution("conv2d", "float32", (2, 3, 5, 4), (4, 3, 3, 3), (2, 4, 5, 4), (1, 1), (1, 1), tf32=True)


def letters(source):
    return "".join(LETTERS.get(kind, "p") for kind in source.signature)


def load(compiler, source):
    """Load, instead of compiling, a kernel whose name tells the stub its parameters."""
    return ObjectCode.from_cubin(b"\x7fELF").get_kernel(f"kernel_{letters(source)}")


libraries.load_nvidia_dynamic_lib = real.load_nvidia_dynamic_lib = lambda name: SimpleNamespace(
    abs_path=str(FOLDER / "libcublas.so.13"))
Compiler.kernel = load


def new_notes(made=[0]):  # noqa: B006 - how many lines were read before
    """Return the calls recorded since the last time."""
    every = notes(LOG)
    fresh, made[0] = every[made[0]:], len(every)
    return fresh


# A training, in step with the judge -----------------------------------------------------------------------------------
class InStep(FakeCuda):
    """The fake vendor, which also forwards every call to the real one. ``told``: the calls that the libraries must get.
    """

    def __init__(self, **options):
        self.real, self.told, self.numbers = real.Cuda(), [], {}
        super().__init__(**options)
        self.listed = [PlanInfo("cores", 200, True, True), PlanInfo("unordered", 0, False),
                       PlanInfo("plain", 300, True)]

    def _tell(self, call, **arguments):
        self.told.append((call, arguments))

    def _real(self, nbytes):
        return self.real.allocate(nbytes)

    def allocate_host(self, nbytes):
        address = self.real.allocate_host(nbytes)
        self._host[address], self._held[address] = nbytes, None
        return address

    def free(self, address):
        super().free(address)
        self.real.free(address)

    def free_host(self, address):
        super().free_host(address)
        self.real.free_host(address)

    def stream(self):
        stream = super().stream()
        stream.real = self.real.stream()
        return stream

    def event(self):
        event = super().event()
        event.real = self.real.event()
        event.number = self.numbers.setdefault("events", 0)
        self.numbers["events"] += 1
        return event

    def record(self, event, stream):
        super().record(event, stream)
        self.real.record(event.real, stream.real)
        self._tell("cuEventRecord", event=event.number, stream=stream.number)

    def wait(self, stream, event):
        super().wait(stream, event)
        self.real.wait(stream.real, event.real)
        self._tell("cuStreamWaitEvent", stream=stream.number, event=event.number)

    def synchronize(self, event):
        super().synchronize(event)
        self.real.synchronize(event.real)
        self._tell("cuEventSynchronize", event=event.number)

    def copy(self, to, origin, nbytes, stream):
        super().copy(to, origin, nbytes, stream)
        self.real.copy(to, origin, nbytes, stream.real)
        self._tell("cuMemcpyAsync", to=to, origin=origin, bytes=nbytes, stream=stream.number)

    def fill(self, address, byte, nbytes, stream):
        super().fill(address, byte, nbytes, stream)
        self.real.fill(address, byte, nbytes, stream.real)
        self._tell("cuMemsetD8Async", address=address, byte=byte, bytes=nbytes, stream=stream.number)

    def launch(self, source, blocks, arguments, stream):
        super().launch(source, blocks, arguments, stream)
        self.real.launch(source, blocks, arguments, stream.real)
        given = {f"{kind}{i}": a if kind == "p" else a.item()
                 for i, (kind, a) in enumerate(zip(letters(source), arguments, strict=True))}
        self._tell("cuLaunchKernel", blocks=blocks, threads=source.threads, stream=stream.number, **given)

    def set_workspace(self, address, nbytes, stream):
        super().set_workspace(address, nbytes, stream)
        self.real.set_workspace(address, nbytes, stream.real)

    def gemm(self, product, c, a, b, stream):
        super().gemm(product, c, a, b, stream)
        self.real.gemm(product, c, a, b, stream.real)
        address, nbytes = self._workspace[stream.number]
        p = product
        self._tell("cublasGemm", stream=stream.real.address, workspace=address, bytes=nbytes, ta=int(p.transpose_a),
                   tb=int(p.transpose_b), m=p.m, n=p.n, k=p.k, alpha=1, a=a, kind=0, lda=p.lda, sa=p.step_a, b=b,
                   ldb=p.ldb, sb=p.step_b, beta=int(p.accumulate), c=c, ldc=p.ldc, sc=p.step_c, count=p.count,
                   compute=77 if p.tf32 else 68, algorithm=-1)

    def convolve(self, convolution, plan, x, w, y, workspace, stream):
        super().convolve(convolution, plan, x, w, y, workspace, stream)
        self.real.convolve(convolution, plan, x, w, y, workspace, stream.real)
        self._tell("cudnnExecute", stream=stream.real.address, x=x, w=w, y=y, workspace=workspace)

    def close(self):
        super().close()
        self.real.close()


def train(policy, budget):
    """Train; return the closed device and its counters."""
    device = WatchedCuda(profiles.get("h200"), numerics=True, depth=512)
    with minidl.Runtime(device, memory_budget=budget + (1 << 16), host_memory="8MiB", policy=policy) as runtime:
        training = Training(runtime, "vgg", "momentum")
        for _ in range(4):
            training.iterate()
        stats = runtime.stats()
    device.close()
    return device, stats


def a_training_reaches_the_libraries_call_for_call_as_the_judge_saw_it():
    _, free = train("none", 1 << 26)
    fake_cuda.FakeCuda = InStep
    device, stats = train("capuchin", int(0.7 * free.peak_bytes))
    told, moved = device.fake.told, stats.swapped_in_bytes
    every = new_notes()
    kinds = {call for call, _ in told}
    assert moved and kinds >= {"cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync", "cuLaunchKernel", "cublasGemm",
                               "cudnnExecute"}, (moved, kinds)
    found = [note for note in every if note[0] in kinds]
    for number, (ours, theirs) in enumerate(zip(told, found, strict=True)):
        assert ours == theirs, (number, ours, theirs)
    check_lifetimes(every)


def check_lifetimes(every):
    """Check that every created object was destroyed once, and all memory was freed."""
    counts = {call: [note[0] for note in every].count(call) for call in {note[0] for note in every}}
    for made, gone in (("cuStreamCreate", "cuStreamDestroy"), ("cuEventCreate", "cuEventDestroy"),
                       ("cuMemAlloc", "cuMemFree"), ("cuMemHostAlloc", "cuMemFreeHost"),
                       ("cublasCreate", "cublasDestroy"), ("cudnnCreate", "cudnnDestroy")):
        assert counts.get(made, 0) == counts.get(gone, 0), (made, counts)
    assert all(note[1]["flags"] == 1 for note in every if note[0] == "cuStreamCreate")  # non-blocking streams


# One by one -----------------------------------------------------------------------------------------------------------
PRODUCT = Gemm("float32", False, False, 2, 2, 2, 2, 2, 2)
NUMBERS = np.int64(1), np.int32(1), np.float32(1), np.float64(1)
SOURCE = DeviceFunction(load, ("*bfloat16", "int64", "int32", "float32", "float64", "*float32"), 96, ())


def arguments_are_packed_in_the_widths_of_the_signature():
    vendor = real.Cuda()
    stream, where = vendor.stream(), vendor.allocate(64)
    given = [where, np.int64(-(1 << 40)), np.int32(-7), np.float32(0.1), np.float64(0.1), where + 4]
    vendor.launch(SOURCE, 1000, given, stream)
    vendor.free(where)
    vendor.close()
    (launched,) = [arguments for call, arguments in new_notes() if call == "cuLaunchKernel"]
    assert launched == {"blocks": 1000, "threads": 96, "stream": launched["stream"], "p0": where, "l1": -(1 << 40),
                        "i2": -7, "f3": 0.100000001, "d4": 0.10000000000000001, "p5": where + 4}, launched


def every_call_is_made_in_the_context_of_its_own_gpu_from_any_thread():
    first, second = real.Cuda(0), real.Cuda(1)
    errors = []

    def work(vendor):
        stream, event = vendor.stream(), vendor.event()
        where = vendor.allocate(1 << 12)
        vendor.set_workspace(where, 256, stream)
        other = second if vendor is first else first
        for _ in range(2):
            vendor.fill(where, 0, 256, stream)
            vendor.launch(SOURCE, 1, [where, *NUMBERS, where], stream)
            vendor.gemm(PRODUCT, where, where, where, stream)
            vendor.record(event, stream)
            other.free(other.allocate(64))  # the other GPU's context is current now
            vendor.wait(stream, event)
            vendor.synchronize(event)
            assert vendor.done(event) and vendor.elapsed(event, event) >= 0
            vendor.copy(where + 256, where, 256, stream)
        vendor.free(where)

    def guarded(*arguments):
        try:
            work(*arguments)
        except BaseException as error:  # told below
            errors.append(error)
    for vendor in (first, second):
        work(vendor)
    threads = [threading.Thread(target=guarded, args=(vendor,)) for vendor in (first, second)]
    for thread in threads:
        thread.start()
        thread.join()
    assert not errors, errors
    for vendor in (first, second):
        vendor.close()
    every = new_notes()
    check_lifetimes(every)
    assert {note[1]["gpu"] for note in every if note[0] == "cuMemAlloc"} == {0, 1}


def each_call_of_the_seam_makes_its_gpu_current_where_another_was():
    """Checked by the driver's own answer after each call; calls that the stubs refuse are not looked at here."""
    sys.modules |= {"cupy": MagicMock(), "minidl.device.cuda.cupti_recorder": MagicMock()}
    first, second = real.Cuda(0), real.Cuda(1)
    stream, event, where = first.stream(), first.event(), first.allocate(1 << 12)
    spare, spare_host, seen = first.allocate(64), first.allocate_host(64), []

    def current():
        return int(real.driver.cuCtxGetCurrent()[1])
    calls = {
        "allocate": lambda: first.allocate(64), "free": lambda: first.free(spare),
        "allocate_host": lambda: first.allocate_host(64), "free_host": lambda: first.free_host(spare_host),
        "stream": first.stream, "event": first.event, "record": lambda: first.record(event, stream),
        "wait": lambda: first.wait(stream, event), "synchronize": lambda: first.synchronize(event),
        "done": lambda: first.done(event), "elapsed": lambda: first.elapsed(event, event),
        "recorder": lambda: first.recorder(stream), "copy": lambda: first.copy(where + 256, where, 256, stream),
        "fill": lambda: first.fill(where, 0, 256, stream), "array": lambda: first.array(where, (2,), (1,), "float32"),
        "launch": lambda: first.launch(SOURCE, 1, [where, *NUMBERS, where], stream),
        "set_workspace": lambda: first.set_workspace(where, 256, stream),
        "gemm": lambda: first.gemm(PRODUCT, where, where, where, stream), "plans": lambda: first.plans(CONV),
        "convolve": lambda: first.convolve(CONV, "a plan", where, where, where, 0, stream),
        "attention_plan": lambda: first.attention_plan(None),
        "attend": lambda: first.attend(None, "a plan", [where], 0, 0, stream), "close": first.close}
    assert set(calls) == {name for name, value in vars(real.Cuda).items() if callable(value) and name[0] != "_"}
    first._bind()
    elsewhere = threading.Thread(target=lambda: first.record(event, stream) or seen.append(current()))
    elsewhere.start()
    elsewhere.join()
    assert seen == [int(first._context)], "a thread went by what is current in another"
    for name, call in calls.items():
        second._bind()
        with suppress(Exception):
            call()
        assert current() == int(first._context), f"{name}: the other GPU is current"
    second.close()
    new_notes()


def whatever_fails_is_a_device_error_with_the_call_and_its_code():
    vendor = real.Cuda()
    stream, event, where = vendor.stream(), vendor.event(), vendor.allocate(64)
    given = [where, *NUMBERS, where]
    attempts = {
        "cuMemcpyAsync": lambda: vendor.copy(where + 32, where, 16, stream),
        "cuEventRecord": lambda: vendor.record(event, stream),
        "cuLaunchKernel": lambda: vendor.launch(SOURCE, 1, given, stream),
        "cuMemHostAlloc": lambda: vendor.allocate_host(1 << 20)}
    for call, attempt in attempts.items():
        os.environ["STUB_CUDA_FAILS"] = call
        try:
            attempt()
        except DeviceError as error:
            assert "LAUNCH_FAILED" in str(error) or "719" in str(error), error
            assert call in str(error) or "launch of" in str(error), error
        else:
            raise AssertionError(f"{call} failed unnoticed")
        del os.environ["STUB_CUDA_FAILS"]
        attempt()
    for attempt, words in ((lambda: real.Cuda(2), "cuda:2 does not exist: there are 2 GPUs"),
                           (lambda: vendor.allocate(1 << 40), "CUDA_ERROR_OUT_OF_MEMORY"),
                           (lambda: vendor.convolve(CONV, "broken", 1, 2, 3, 0, stream), "EXECUTION_FAILED")):
        try:
            attempt()
        except DeviceError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    vendor.close()


CHECKS = (a_training_reaches_the_libraries_call_for_call_as_the_judge_saw_it,
          arguments_are_packed_in_the_widths_of_the_signature,
          every_call_is_made_in_the_context_of_its_own_gpu_from_any_thread,
          each_call_of_the_seam_makes_its_gpu_current_where_another_was,
          whatever_fails_is_a_device_error_with_the_call_and_its_code)

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(check.__name__, flush=True)
