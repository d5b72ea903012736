"""Versions, the GPU's properties and profile; and a check that a small network trains on it as on the CPU."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import numpy as np

from bench.gpu_check.setting import Record, Setting, runtime_on
from minidl import nn
from minidl.device import Device, create
from minidl.device.cuda.device import CudaDevice
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD

PACKAGES = ("minidl", "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda13x", "cupy-cuda12x",
            "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "torch")
STEPS = 5
BUDGET = 256 * 2**20
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2}  # of a loss, after some steps; the sums' order differs


def measure(setting: Setting, record: Record) -> None:
    """Record versions and properties, and the losses of a small network beside those on the CPU."""
    record.put("python", platform.python_version())
    record.put("packages", {name: found for name in PACKAGES if (found := _version(name))})
    with setting.open() as device:
        record.put("device", device.name)
        record.put("profile", asdict(device.profile))
        if isinstance(device, CudaDevice):
            record.put("properties", asdict(device.vendor.properties))
    with record.one("cuDNN's description of the GPU"):
        if setting.device.startswith("cuda") and find_spec("cudnn"):
            record.put("cudnn", json.loads(cudnn_properties()), "cuDNN's description of the GPU was kept")
    right = small_network(create("cpu:virtual"), "fp32")
    record.put("losses on the cpu", right)
    for precision, tolerance in TOLERANCE.items():
        with setting.open(precision) as device:
            losses = small_network(device, precision)
        record.put(f"losses in {precision}", losses)
        if not np.allclose(losses, right, rtol=tolerance):
            record.fail(f"a small network's losses in {precision} are {losses}, and {right} on the CPU")


def small_network(device: Device, precision: str) -> list[float]:
    """Train a small convolutional network for a few steps; return its losses.

    They are the same numbers on every device except for rounding, since all begin from the same weights and data.
    """
    data = np.random.default_rng(0)
    losses = []
    with runtime_on(device, precision, memory_budget=BUDGET) as runtime:
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                              nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
                              nn.Flatten(), nn.Linear(16, 10))
        model.load_state_dict({name: data.uniform(-0.2, 0.2, value.shape).astype(np.float32) if "running" not in name
                               else value for name, value in model.state_dict().items()})
        optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(STEPS):
            with runtime.iteration():
                x = runtime.tensor(data.standard_normal((16, 3, 16, 16)).astype(np.float32))
                loss = cross_entropy(model(x), runtime.tensor(data.integers(0, 10, 16)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


def cudnn_properties() -> str:
    """Return the first GPU's properties as cuDNN serializes them, for listing plans without it (bench/cudnn_plans.py).
    """
    import cudnn

    found = cudnn.create_device_properties(0).serialize()  # text, or its bytes as numbers: versions differ
    return found if isinstance(found, str) else bytes(found).decode()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
