"""The first run on a GPU: what is there, whether our own machine code runs, and what the vendor's calls cost.

    python -m bench.gpu [--out results] [--models resnet50 vgg16] [--batch 64] [--precision tf32]

Writes ``gpu.json``: versions and properties, the link (out, in, both at once), the losses of a small network beside
those of the CPU, the host's time for an event and an operation, and every plan of every convolution with its workspace
and seconds, for the simulator's profiles.
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.steps import training_step
from minidl import Runtime, nn
from minidl.device.cuda import convolution, create, missing
from minidl.device.cuda.device import CudaDevice
from minidl.device.device import Device, DryDevice
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD

LINK_BYTES = 256 * 2**20
CALLS = 2000


def host_seconds(call: Callable[[], Any], settle: Callable[[], Any]) -> float:
    """Median host time of a call, over many in a row that the device has not to be waited for."""
    runs = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        runs.append((time.perf_counter() - start) / CALLS)
        settle()
    return median(runs)


def link(device: CudaDevice) -> dict[str, float]:
    """Bytes a second between page-locked memory and the device, both ways at once included."""
    vendor = device.vendor
    memory, host = vendor.allocate(2 * LINK_BYTES), vendor.allocate_host(2 * LINK_BYTES)
    streams, events = [vendor.stream(), vendor.stream()], [vendor.event() for _ in range(3)]

    def seconds(out: bool, into: bool) -> float:
        vendor.record(events[0], streams[0])
        vendor.wait(streams[1], events[0])
        if out:
            vendor.copy(host, memory, LINK_BYTES, streams[0])
        if into:
            vendor.copy(memory + LINK_BYTES, host + LINK_BYTES, LINK_BYTES, streams[1])
        vendor.record(events[1], streams[1])
        vendor.wait(streams[0], events[1])
        vendor.record(events[2], streams[0])
        vendor.synchronize(events[2])
        return vendor.elapsed(events[0], events[2])
    found = {}
    for name, out, into in (("out", True, False), ("in", False, True), ("both", True, True)):
        seconds(out, into)
        found[name] = (out + into) * LINK_BYTES / median(seconds(out, into) for _ in range(5))
    vendor.free(memory)
    vendor.free_host(host)
    return found


def host_times(device: CudaDevice) -> dict[str, float]:
    """Seconds of the host for an event, and for whole steps, an operation."""
    vendor, stream = device.vendor, device.streams.handles[0]
    event = vendor.event()
    found = {"event": host_seconds(lambda: vendor.record(event, stream), lambda: vendor.synchronize(event))}
    with Runtime(device, policy="none", host_memory=0) as runtime:
        step = training_step(runtime, "resnet50", 8)
        for _ in range(5):
            before, start = runtime.stats().calls, time.perf_counter()
            with runtime.iteration():
                step()
            found["operation"] = (time.perf_counter() - start) / (runtime.stats().calls - before)
            device.settle()
    return found


def small_network(device: str | Device, seed: int = 0) -> list[float]:
    """Losses of a few steps of a small convolutional network: the same numbers on every device, but for rounding."""
    data = np.random.default_rng(seed)
    losses = []
    with Runtime(device, policy="none", memory_budget="256MiB", host_memory=0, seed=seed) as runtime:
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                              nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
                              nn.Flatten(), nn.Linear(16, 10))
        optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(5):
            with runtime.iteration():
                x = runtime.tensor(data.standard_normal((16, 3, 16, 16)).astype(np.float32))
                loss = cross_entropy(model(x), runtime.tensor(data.integers(0, 10, 16)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


def plans(device: CudaDevice, name: str, batch: int) -> list[dict[str, Any]]:
    """Every plan of every convolution of a model's step, timed."""
    seen = set()

    class Listing(DryDevice):
        """A dry run whose convolutions are noted."""

        def algorithms(self, op_name, inputs, outputs, attrs, cost):
            if op_name in convolution.KINDS:
                seen.add(convolution.steps(op_name, inputs, outputs[0], attrs,
                                           tf32=device.programs.tf32).convolution)
            return super().algorithms(op_name, inputs, outputs, attrs, cost)
    with Runtime(Listing(device), policy="none", host_memory=0) as runtime:
        runtime.dry_run(training_step(runtime, name, batch))
    return [{"convolution": asdict(found), "plans": [asdict(p) for p in device.plans.of(found)]}
            for found in sorted(seen, key=str)]


def step_seconds(device: CudaDevice, name: str, batch: int) -> dict[str, float]:
    """Device seconds of a step by operation, as its events say."""
    with Runtime(device, policy="none", host_memory=0) as runtime:
        step = training_step(runtime, name, batch)
        for _ in range(2):
            with runtime.iteration():
                step()
        with runtime.iteration():
            step()
            trace = runtime.trace()
    by_op: dict[str, float] = {"all": trace.seconds}
    for call in trace.calls:
        by_op[call.op] = by_op.get(call.op, 0.0) + call.seconds
    return by_op


def opened(precision: str) -> CudaDevice:
    """The GPU; whoever opens it closes it, since a runtime takes all its memory."""
    device = create("cuda", precision=precision)
    assert isinstance(device, CudaDevice)
    return device


def parts(names: list[str], batch: int, precision: str) -> dict[str, tuple[str, Callable[[CudaDevice], Any]]]:
    """What is measured, each on a device of its own: name -> (precision, how)."""
    found: dict[str, tuple[str, Callable[[CudaDevice], Any]]] = {
        "properties": (precision, lambda device: asdict(device.vendor.properties)),
        "profile": (precision, lambda device: asdict(device.profile)),
        "link": (precision, link),
        "losses on the cpu": (precision, lambda device: small_network("cpu")),
        "losses in fp32": ("fp32", small_network),
        "losses in tf32": ("tf32", small_network),
        "host seconds": (precision, host_times),
    }
    for name in names:
        found[f"plans of {name}"] = precision, partial(plans, name=name, batch=batch)
        found[f"seconds of {name}"] = precision, partial(step_seconds, name=name, batch=batch)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--models", nargs="*", default=["resnet50", "vgg16"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", default="tf32")
    args = parser.parse_args()
    message = missing.message()
    if message is not None:
        raise SystemExit(message)
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name, (precision, measure) in parts(args.models, args.batch, args.precision).items():
        try:
            device = opened(precision)
            try:
                found[name] = measure(device)
            finally:
                device.close()
        except Exception as error:  # the first run is to say as much as it can: what follows may work
            found[name] = "".join(traceback.format_exception(error))
        print(f"{name}: {str(found[name])[-500:]}", flush=True)
        (args.out / "gpu.json").write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
