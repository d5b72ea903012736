"""Training in a small part of the memory that it needs, under ``auto``, beside the same step with all of it.

If the device has room, the unmanaged step is measured call by call, so that the bound of all plans follows from
measured times (``prediction``). The feedback is shown by one line for each iteration: its seconds, stalls, bytes moved
and recomputation.
"""

from collections.abc import Iterator
from statistics import median
from typing import Any

from bench.gpu_check.setting import RESERVE_BYTES, Record, Setting, Training, runtime_on
from bench.gpu_check.steps import Network, program
from minidl import Runtime
from minidl.plan.trace_format import trace_to_json
from minidl.policies.auto.policy import Auto

UNMANAGED_STEPS = 5
LAST = 3  # iterations whose median is the speed that was reached


def measure(setting: Setting, record: Record) -> None:
    """Record for each network its seconds and speeds, the bytes that it moved, and its stalls."""
    for training in setting.sizes.managed:
        if record.known(training.name) and record.known(f"{training.name}, unmanaged"):
            continue
        if not setting.in_time(record, training.name):
            continue
        unmanaged = None
        with record.one(f"{training.name}, unmanaged"):
            unmanaged = _unmanaged(setting, record, training)
        with record.one(training.name):
            _managed(setting, record, training, unmanaged)


def iterate(runtime: Runtime, network: Network) -> dict[str, Any]:
    """Carry out one iteration; return its seconds by the device's clock, the bytes that it moved, and its counters."""
    device = runtime.device
    device.settle()
    before = runtime.stats()
    with runtime.iteration():
        network.step()
    device.settle()
    grown = runtime.stats().since(before)
    return {"seconds": grown.seconds, "stalls": grown.stall_seconds, "recomputing": grown.recompute_seconds,
            "out": grown.swapped_out_bytes, "in": grown.swapped_in_bytes, "recomputed": grown.recomputed_bytes,
            "moved": grown.moved_bytes}


def course(runtime: Runtime, network: Network, plans: int) -> Iterator[dict[str, Any]]:
    """Yield iterations until ``auto`` has tried ``plans`` plans, and some further ones under the best of them.

    These are the iterations that warm up and are measured, and at most two for each plan.
    """
    settled = 0
    for _ in range(1 + runtime.device.measured_iterations + 2 * plans + LAST):
        yield iterate(runtime, network)
        active = runtime.guide.active if runtime.guide is not None else None
        tried = active is not None and (active.proposal.notes is None or active.proposal.notes.round >= plans)
        settled = settled + 1 if tried else 0
        if settled > LAST:  # the plan that was adopted last starts from what another one left
            return


def _unmanaged(setting: Setting, record: Record, training: Training) -> float | None:
    """Return the seconds of a step with all the memory that it needs; None if the device has less."""
    demand = setting.demand(program(training))
    budget = int(1.05 * demand.unmanaged_peak_bytes) + RESERVE_BYTES
    with setting.open() as device:
        if device.wall_clock and budget > device.profile.memory_bytes:
            record.leave_out(f"{training.name}: unmanaged it needs {budget / 1e9:.0f} GB, and there are "
                             f"{device.profile.memory_bytes / 1e9:.0f}")
            return None
        with runtime_on(device, "tf32", memory_budget=budget, deterministic=False) as runtime:
            network = Network(runtime, training)
            seconds = [iterate(runtime, network)["seconds"] for _ in range(UNMANAGED_STEPS)][2:]
            with runtime.iteration():
                network.step()
                device.settle()
                trace = runtime.trace()
    setting.folder.mkdir(parents=True, exist_ok=True)
    trace_path(setting, training).write_text(trace_to_json(trace), encoding="utf-8")
    found = {"seconds": median(seconds), "bytes": demand.unmanaged_peak_bytes, "in its calls": trace.seconds}
    record.put(f"{training.name}, unmanaged", found,
               f"{training.name}: unmanaged {1e3 * found['seconds']:.0f} ms in {found['bytes'] / 2**30:.1f} GiB")
    middle: float = median(seconds)
    return middle


def _managed(setting: Setting, record: Record, training: Training, unmanaged: float | None) -> None:
    sizes = setting.sizes
    steps: list[dict[str, Any]] = []
    with setting.open() as device, runtime_on(
            device, "tf32", memory_budget=sizes.managed_bytes, deterministic=False, policy=Auto(rounds=sizes.plans),
            host_memory=min(sizes.host_bytes, device.profile.host_memory_bytes)) as runtime:
        network = Network(runtime, training)
        if runtime.guide is not None:
            runtime.guide.allowance.limited = False  # a long run searches as often, in its 2% of planning
        for number, last in enumerate(course(runtime, network, sizes.plans)):
            steps.append(last)
            record.tell(f"  {number}: {1e3 * last['seconds']:.0f} ms, stalls {1e3 * last['stalls']:.0f} ms, "
                        f"recomputing {1e3 * last['recomputing']:.0f} ms, out {last['out'] / 1e9:.2f} GB")
            if setting.seconds_left() < 0:
                record.leave_out(f"{training.name}: after {number + 1} iterations the time was up")
                break
        usable, stats = runtime.budget_bytes, runtime.stats()
    reached = median(step["seconds"] for step in steps[-LAST:])
    found = {"seconds": reached, "share": unmanaged / reached if unmanaged else None, "course": steps,
             "usable bytes": usable, "host peak bytes": stats.host_peak_bytes, "last": steps[-1]}
    share = f", {found['share']:.1%} of the unmanaged speed" if unmanaged else ""
    record.put(training.name, found, f"{training.name} in {sizes.managed_bytes / 2**30:.1f} GiB: {1e3 * reached:.0f} "
                                     f"ms{share}; {steps[-1]['out'] / 1e9:.1f} GB out, stalls "
                                     f"{1e3 * steps[-1]['stalls']:.0f} ms")


def trace_path(setting: Setting, training: Training) -> Any:
    """Return the path of the file that has the measured trace of an unmanaged step."""
    return setting.folder / f"{training.model}-{training.batch}.trace.json"
