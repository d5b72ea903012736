"""Host time of work: an event, a launch, a product, a convolution; an operation with everything that minidl does.

Host times are medians over many calls in a row without a wait. The tracker's share is the time inside its calls over
the time of a step. The share by events is the sum of the operations' times, from the ring of events, over the step's
time on the clock; the rest to 1 is time in which the device was idle. CUPTI, if there is one, gives the share of the
ring's times in which kernels ran; the rest to 1 are gaps between an operation's kernels.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from bench.gpu_check.setting import Record, Setting, Training, runtime_on
from bench.gpu_check.steps import Network, program
from bench.support.probe import own_seconds, tracking
from minidl import Runtime
from minidl.device.cuda.device import CudaDevice
from minidl.errors import DeviceError

RUNS = 5
WARM_STEPS = 2
VENDOR_CALLS = ("launch", "gemm", "convolve")
AHEAD = 0.9  # of a step's time: a host that needs more of it to issue the step is what sets the pace


def measure(setting: Setting, record: Record) -> None:
    """Record the host seconds of each kind of call, and shares of a training step."""
    for training in setting.sizes.host:
        with setting.runtime(memory_budget=setting.bytes_for(program(training))) as runtime:
            network = Network(runtime, training)
            for _ in range(WARM_STEPS):
                _step(runtime, network)
            _operations(record, training, runtime, network)
            if runtime.device.wall_clock:
                _by_events(record, training, runtime, network)
            _tracking(record, training, runtime, network)
    _vendor_calls(setting, record, setting.sizes.host[0])


def _step(runtime: Runtime, network: Network) -> tuple[float, float, int]:
    """Carry out a step; return the host's seconds until all was issued, seconds until it had ended, and its operations.
    """
    runtime.device.settle()
    before, start = runtime.stats().calls, perf_counter()
    with runtime.iteration():
        network.step()
    issued = perf_counter() - start
    runtime.device.settle()
    return issued, perf_counter() - start, runtime.stats().calls - before


def _operations(record: Record, training: Training, runtime: Runtime, network: Network) -> None:
    runs = [_step(runtime, network) for _ in range(RUNS)]
    issued, ended, calls = (median(column) for column in zip(*runs, strict=True))
    pace = "device" if issued < AHEAD * ended else "host"
    record.put(training.name, {"operations": calls, "seconds an operation": issued / calls, "seconds a step": ended,
                               "pace set by": pace},
               f"{training.name}: {1e6 * issued / calls:.1f} microseconds of the host an operation; a step of "
               f"{calls:.0f} takes {1e3 * ended:.1f} ms, and the {pace} sets the pace")


def _by_events(record: Record, training: Training, runtime: Runtime, network: Network) -> None:
    """Record the sum of the operations' times by events as a share of the step's time, and of the times by CUPTI."""
    inside, ended = _traced(runtime, network)
    record.put(f"{training.name}, by events", inside / ended,
               f"{training.name}: by their events operations take {inside / ended:.1%} of the step's time")
    if isinstance(runtime.device, CudaDevice):
        streams = runtime.device.streams
        try:
            streams.measure_exactly(True)
        except (DeviceError, ImportError) as error:
            record.leave_out(f"{training.name}: the events were not compared with CUPTI: {error}")
            return
        exact, _ = _traced(runtime, network)
        streams.measure_exactly(False)
        record.put(f"{training.name}, by CUPTI", exact / inside,
                   f"{training.name}: by CUPTI kernels run for {exact / inside:.1%} of what the events say")


def _traced(runtime: Runtime, network: Network) -> tuple[float, float]:
    """Carry out a step; return the sum of its operations' seconds, and its seconds on the clock."""
    runtime.device.settle()
    start = perf_counter()
    with runtime.iteration():
        network.step()
        runtime.device.settle()
        return runtime.trace().seconds, perf_counter() - start


def _tracking(record: Record, training: Training, runtime: Runtime, network: Network) -> None:
    """Record the host's time inside the tracker's calls, as a share of a step."""
    ended = median(_step(runtime, network)[1] for _ in range(RUNS))  # probes take time themselves
    probe = tracking(runtime)
    for _ in range(RUNS):
        _step(runtime, network)
    inside = max(0.0, probe.seconds - own_seconds() * probe.calls) / RUNS
    record.put(f"{training.name}, tracking", {"seconds": inside, "share of the step": inside / ended},
               f"{training.name}: the tracker takes {1e6 * inside:.0f} microseconds a step, {inside / ended:.2%} of it")


def _vendor_calls(setting: Setting, record: Record, training: Training) -> None:
    """Record the host seconds of the vendor's calls, which are repeated as a step made them last."""
    budget = setting.bytes_for(program(training))
    with setting.open() as device:
        if not isinstance(device, CudaDevice):
            record.leave_out(f"{device.name} has no vendor whose calls could be timed")
            return
        vendor: Any = device.vendor
        calls: dict[str, Callable[[], Any]] = {}
        originals = {name: getattr(vendor, name) for name in VENDOR_CALLS}

        def capturing(name: str) -> Callable[..., Any]:
            def captured(*arguments: Any) -> Any:
                calls[name] = lambda: originals[name](*arguments)
                return originals[name](*arguments)
            return captured
        for name in VENDOR_CALLS:  # before anything is prepared: programs keep what they call
            setattr(vendor, name, capturing(name))
        with runtime_on(device, "tf32", memory_budget=budget) as runtime:
            _step(runtime, Network(runtime, training))
            stream, event = device.streams.handles[0], vendor.event()

            def settle() -> None:
                vendor.record(event, stream)
                vendor.synchronize(event)
            for name, call in {"event": lambda: vendor.record(event, stream), **calls}.items():
                runs = []
                for _ in range(RUNS):
                    start = perf_counter()
                    for _ in range(setting.sizes.calls):
                        call()
                    runs.append((perf_counter() - start) / setting.sizes.calls)
                    settle()
                record.put(name, median(runs), f"{name}: {1e6 * median(runs):.2f} microseconds of the host")
