"""What holds of every device: none but simulators is a simulator, none knows memory, and twins decide as it does."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cuda import JudgedCuda

import minidl.device
from minidl.device import Device, create, profiles
from minidl.device.clock import COMPUTE
from minidl.device.cpu.device import ThreadedCpu
from minidl.device.sim import SimDevice
from minidl.meta import meta
from minidl.ops.conv import CONV2D
from minidl.ops.elementwise import ADD

RATES = {"conv2d": {"flops": 1e-13}, "add": {"bytes": 1e-11}}
INPUTS = meta((64, 64, 56, 56)), meta((64, 64, 3, 3))
WINDOW = {"stride": (1, 1), "padding": (1, 1)}


@pytest.fixture(params=["sim:p100", "sim:h200", "sim:<cpu>.json", "sim:<gpu>.json", "cpu:virtual", "cpu:threads",
                        "cuda"])
def device(request, tmp_path):
    """One of each kind."""
    kind = request.param
    if kind == "cuda":
        yield JudgedCuda(profiles.get("h200"))
    elif kind == "cpu:threads":
        made = ThreadedCpu(kind, profiles.get("cpu"))
        yield made
        made.close()
    elif kind.endswith(".json"):
        profile = (replace(profiles.get("cpu"), rates=RATES) if "cpu" in kind else
                   replace(profiles.get("h200"), rates=RATES, rates_of="cuda"))
        path = tmp_path / "profile.json"
        path.write_text(profiles.to_json(profile), encoding="utf-8")
        yield create(f"sim:{path}")
    else:
        yield create(kind)


def algorithms(device: Device, op, inputs, attrs):
    outputs = device.lay_out(op.name, inputs, (op.infer(*inputs, **attrs),))
    return device.algorithms(op.name, inputs, outputs, attrs, op.cost(inputs, outputs, attrs))


def both(device: Device):
    """The algorithms of a convolution and of a sum."""
    laid = tuple(device.lay_out_leaf(m) for m in INPUTS)
    return algorithms(device, CONV2D, laid, WINDOW), algorithms(device, ADD, (laid[0], laid[0]), {})


def test_a_device_with_values_is_no_simulator_and_one_without_is(device):
    assert isinstance(device, SimDevice) is not device.has_values


def test_a_dry_twin_decides_as_its_device_does_and_launches_nothing(device):
    device.attention = "fused"
    twin = device.dry_twin()
    assert both(twin) == both(device)
    assert twin.profile is device.profile and twin.usable_bytes(1 << 30) == device.usable_bytes(1 << 30)
    assert twin.lay_out_leaf(INPUTS[0]) == device.lay_out_leaf(INPUTS[0])
    for m in INPUTS[0], device.lay_out_leaf(INPUTS[0]):
        assert twin.lay_out("add", (m, m), INPUTS[:1]) == device.lay_out("add", (m, m), INPUTS[:1])
    q = meta((2, 16, 64))
    assert (twin.fuses_attention(q, q, None, heads=4, causal=False, p=0.0)
            == device.fuses_attention(q, q, None, heads=4, causal=False, p=0.0))
    told = []
    assert twin.launch("add", both(device)[1][0], (), (), {}, 0, told.append) == 0
    assert told == [] and twin.now() == 0.0 and twin.positions == device.positions == [0, 0, 0]


def test_a_simulated_twin_takes_as_long_as_its_device_from_the_start(device):
    twin = device.simulated_twin()
    if device.has_values:
        assert twin is None
        return
    device.attention = "fused"
    convolution = both(device)[0][0]
    device.launch("conv2d", convolution, (), (), WINDOW, 0)
    twin = device.simulated_twin()
    assert twin.now() == 0.0 and twin.positions[COMPUTE] == 0
    assert (twin.name, twin.profile, twin.attention) == (device.name, device.profile, "fused")
    assert both(twin) == both(device)
    twin.launch("conv2d", convolution, (), (), WINDOW, 0)
    assert twin.now() == device.now() > 0.0


def test_the_twins_of_a_dry_twin_are_those_of_its_device(device):
    dry, twin = device.dry_twin(), device.simulated_twin()
    assert both(dry.dry_twin()) == both(device)
    found = dry.simulated_twin()
    assert found is None if twin is None else both(found) == both(device)


def test_devices_import_nothing_of_memory_not_even_for_types():
    for path in Path(minidl.device.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                     [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            assert not any(name.startswith("minidl.memory") for name in names), path
