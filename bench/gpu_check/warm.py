"""Prepares everything that is kept on disk before anything is measured: machine code, in parallel processes, and plans.

Without it the first part would be timed while it compiles, or killed because its time is up.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import perf_counter

from bench.gpu_check.convolutions import convolutions_of
from bench.gpu_check.setting import Record, Setting, Sizes, Training
from bench.support import cuda_calls, kernel_cases
from bench.support.kernel_cases import OPS
from minidl.device.cuda.device import CudaDevice
from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.launch import DeviceFunction
from minidl.meta import DTYPES, meta

TOLD = 5  # kernels that do not compile, one by one
SHARE = 0.6  # of the part's time that compiling may take: the rest is for plans


def measure(setting: Setting, record: Record) -> None:
    """Record how many kernels were compiled and plans listed, and the seconds that each took."""
    with setting.open() as device:
        if not isinstance(device, CudaDevice):
            record.leave_out(f"{device.name} needs no machine code and no plans")
            return
        wanted = every_source(setting.sizes)
        if setting.device.startswith("cuda") and setting.compiles:
            start = perf_counter()
            done, failed = compile_all(wanted, device.vendor.properties.capability, SHARE * setting.seconds_left())
            record.put("cubins", {"made": done, "wanted": len(wanted), "seconds": perf_counter() - start},
                       f"{done} of {len(wanted)} kernels compiled in {perf_counter() - start:.0f} seconds, "
                       f"by {os.cpu_count()} processes")
            for words in failed[:TOLD]:
                record.fail(words)
            if len(failed) > TOLD:
                record.fail(f"{len(failed) - TOLD} more kernels do not compile")
            if done + len(failed) < len(wanted):
                record.leave_out(f"{len(wanted) - done - len(failed)} kernels were not compiled: the time was up")
        else:
            record.put("cubins", {"made": 0, "wanted": len(wanted), "seconds": 0.0})
    _list_plans(setting, record)


def _list_plans(setting: Setting, record: Record) -> None:
    """List and time the plans of every convolution that a later part runs, in the order of these parts.

    After this no part spends its own time on them.
    """
    start, listed, left = perf_counter(), 0, 0
    for precision, networks in trained(setting.sizes).items():
        with setting.open(precision) as device:
            assert isinstance(device, CudaDevice)
            for training in networks:
                for each in convolutions_of(device, training, precision):
                    if setting.seconds_left() < 0:
                        left += 1
                    else:
                        device.plans.of(each)
                        listed += 1
    record.put("plans", {"convolutions": listed, "seconds": perf_counter() - start},
               f"plans of {listed} convolutions listed and timed in {perf_counter() - start:.0f} seconds")
    if left:
        record.leave_out(f"the plans of {left} convolutions: the time is up")


def trained(sizes: Sizes) -> dict[str, tuple[Training, ...]]:
    """The networks of the parts that time or compare training, by precision, each once, in the order of these parts."""
    found: dict[str, tuple[Training, ...]] = {}
    for precision in sizes.precisions:
        networks: list[Training] = []
        managed = sizes.managed if precision == "tf32" else ()
        for each in (*sizes.identity, *sizes.speed, *sizes.convolutions, *managed):
            if each not in networks:
                networks.append(each)
        found[precision] = tuple(networks)
    return found


def every_source(sizes: Sizes) -> list[DeviceFunction]:
    """The sources that the check of these sizes needs, each once."""
    return list(dict.fromkeys(s for dtype in sizes.dtypes for s in sources(dtype, sizes.ops_block)))


def sources(dtype: str, block: int) -> Iterator[DeviceFunction]:
    """The sources that the calls of ``cuda_calls`` and the cases of ``kernel_cases`` need in a dtype."""
    if dtype in cuda_calls.PRECISIONS:
        yield from cuda_calls.sources(dtype)
    for case in kernel_cases.cases(block):
        op = OPS[case.name]
        if case.name not in KERNELS or op.mutates is not None or case.attrs.get("data", 0) is None:
            continue
        inputs = [meta(a.shape, DTYPES[a.dtype.name]) for a in case.inputs(dtype)]
        outputs = op.infer(*inputs, **case.attrs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        yield from KERNELS[case.name].prepare([*outputs, *inputs], case.attrs).sources


def compile_all(wanted: Sequence[DeviceFunction], capability: tuple[int, int], seconds: float) -> tuple[int, list[str]]:
    """Compile sources in as many processes as there are cores.

    Returns how many were done in time, and the error messages of those that do not compile.
    """
    ends, done, failed = perf_counter() + seconds, 0, []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_compile, source, capability): source for source in wanted}
        try:
            for future in as_completed(futures, timeout=max(1.0, ends - perf_counter())):
                try:
                    future.result()
                    done += 1
                except Exception as error:  # of whatever type the compilers raise
                    failed.append(f"{futures[future].name} does not compile: {type(error).__name__}: {error}")
        except TimeoutError:
            for future in futures:
                future.cancel()
    return done, failed


def _compile(source: DeviceFunction, capability: tuple[int, int]) -> None:
    from minidl.kernels.cuda.compile import Compiler

    Compiler(capability).cubin(source)
