"""Calibration: rates are found again, predictions are sums of them, and the workloads leave no operation out.

Nothing here looks at how fast this machine is: where durations matter they are made up.
"""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from minidl import Runtime, calibrate, models
from minidl import device as devices
from minidl.calibrate import fitting, measure
from minidl.calibrate.fitting import Sample
from minidl.calibrate.workloads import QUICK, THOROUGH
from minidl.cli import calibrate as command
from minidl.device import fitted, profiles
from minidl.device.cost_model import kernel_seconds
from minidl.device.cpu import link
from minidl.device.cpu.algorithms import cpu_algorithms
from minidl.kernels.roles import ROLES
from minidl.meta import Cost, int64, meta
from minidl.models import bert
from minidl.models.text import Text
from minidl.ops import cross_entropy
from minidl.optim import SGD, AdamW

UNLIMITED = 1 << 50  # bytes, of devices without numbers
NOMINAL = profiles.get("cpu")
UNIT_STRIDE = {"stride": (1, 1), "padding": (1, 1)}
MADE_UP = {"calls": 3e-6, "flops": 1e-11, "bytes": 2e-10, "far_bytes": 1e-10, "columns": 5e-11, "weights": 4e-11}


def seconds(rates, amounts):
    return sum(rate * amounts.get(term, 0.0) for term, rate in rates.items())


def sample(key, amounts, took):
    return Sample((key,), "elementwise", 0.0, amounts.get("bytes", 0.0), amounts, took)


# Terms -------------------------------------------------------------------------------------------------------------
def test_the_terms_of_a_convolution_are_its_three_matrices():
    # x [2, 3, 8, 8] by w [5, 3, 3, 3] with padding 1 -> y [2, 5, 8, 8]: 2 * 640 * 27 operations
    x, w, y = meta((2, 3, 8, 8)), meta((5, 3, 3, 3)), meta((2, 5, 8, 8))
    cost = Cost(2.0 * 640 * 27, 4.0 * (384 + 135 + 640), "conv")
    for name, inputs, outputs in (("conv2d", (x, w), (y,)), ("conv2d_dgrad", (y, w), (x,)),
                                  ("conv2d_wgrad", (y, x), (w,))):
        found = fitted.terms(name, inputs, outputs, UNIT_STRIDE, cost)
        assert found == {"calls": 1, "flops": cost.flops, "bytes": cost.nbytes, "far_bytes": 0,
                         "columns": 2 * 64 * 27, "weights": 2 * 135}
        assert list(fitted.keys(name, "a", inputs, outputs, UNIT_STRIDE)) == [f"{name}/a 3x3/1", f"{name}/a"]
    assert list(fitted.keys("conv2d_relu", "a", (x, w), (y,), UNIT_STRIDE)) == ["conv2d/a 3x3/1", "conv2d/a"]
    assert fitted.terms("conv2d_relu", (x, w), (y,), UNIT_STRIDE, cost) == fitted.terms("conv2d", (x, w), (y,),
                                                                                       UNIT_STRIDE, cost)


def test_a_1x1_window_reads_its_input_in_place_unless_it_strides():
    x, w = meta((2, 4, 8, 8)), meta((6, 4, 1, 1))
    flat = {"stride": (1, 1), "padding": (0, 0)}
    assert fitted.terms("conv2d", (x, w), (meta((2, 6, 8, 8)),), flat, Cost(1, 1, "conv"))["columns"] == 0
    strided = {"stride": (2, 2), "padding": (0, 0)}
    found = fitted.terms("conv2d", (x, w), (meta((2, 6, 4, 4)),), strided, Cost(1, 1, "conv"))
    assert found["columns"] == 2 * 16 * 4


def test_bytes_beyond_a_cache_count_again_and_arithmetic_on_few_operands_does_not_count():
    x = meta((1 << 22,))
    found = fitted.terms("add", (x, x), (x,), {}, Cost(1e9, 48.0 * 2**20, "elementwise"))
    assert found == {"calls": 1, "bytes": 48 * 2**20, "far_bytes": 40 * 2**20}
    assert list(fitted.keys("add", "", (x, x), (x,), {})) == ["add"]


# Fitting -----------------------------------------------------------------------------------------------------------
def random_amounts(rng, count):
    return [{term: 1.0 if term == "calls" else float(10 ** rng.uniform(3, 8)) for term in MADE_UP}
            for _ in range(count)]


def test_rates_are_found_again():
    amounts = random_amounts(np.random.default_rng(0), 40)
    found = fitting.fit([sample("x", a, seconds(MADE_UP, a)) for a in amounts])
    assert found == pytest.approx(MADE_UP, rel=1e-6)


def test_no_rate_is_negative_and_noise_stays_where_it_is():
    rng = np.random.default_rng(1)
    amounts = random_amounts(rng, 60)
    noisy = [sample("x", a, seconds(MADE_UP, a) * float(rng.uniform(0.9, 1.1))) for a in amounts]
    found = fitting.fit(noisy)
    assert all(rate > 0 for rate in found.values())
    errors = [seconds(found, s.amounts) / seconds(MADE_UP, s.amounts) - 1 for s in noisy]
    assert max(map(abs, errors)) < 0.1


def test_a_name_gets_the_rates_of_its_own_samples():
    slow, fast = ({"calls": 1.0, "bytes": n} for n in (1e6, 2e6))
    two = [Sample((f"op {kind}", "op"), "copy", 0.0, a["bytes"], a, factor * a["bytes"] * 1e-9)
           for kind, factor in (("a", 1), ("b", 3)) for a in (slow, fast)]
    found = fitting.rates(two)
    assert found["op a"]["bytes"] == pytest.approx(1e-9) and found["op b"]["bytes"] == pytest.approx(3e-9)
    assert 1e-9 < found["op"]["bytes"] < 3e-9


def test_a_special_name_with_few_samples_has_the_general_rates_times_a_factor():
    amounts = random_amounts(np.random.default_rng(2), 60)
    samples = [Sample(("op few" if i < 3 else "op many", "op"), "conv", 0.0, 0.0, a,
                      seconds(MADE_UP, a) * (2.0 if i < 3 else 1.0)) for i, a in enumerate(amounts)]
    found = fitting.rates(samples)
    assert found["op many"] == pytest.approx(MADE_UP, rel=1e-6)
    factors = [found["op few"].get(term, 0.0) / rate for term, rate in found["op"].items()]
    assert factors == pytest.approx([factors[0]] * len(factors)) and factors[0] == pytest.approx(2.0, rel=0.2)


def test_peaks_are_the_best_that_was_seen_and_efficiencies_shares_of_it():
    def one(kind, flops, nbytes, took):
        return Sample(("x",), kind, flops, nbytes, {}, took)
    samples = [one("conv", 4e9, 1e6, 0.1), one("matmul", 8e9, 1e6, 0.1), one("elementwise", 1e6, 2e9, 0.1)]
    flops, nbytes, efficiency = fitting.peaks(samples, bandwidth=16e9)
    assert (flops, nbytes) == pytest.approx((80e9, 20e9))
    assert efficiency == pytest.approx({"conv": 0.5, "winograd": 0.5, "fft": 0.5, "matmul": 1.0, "elementwise": 1.0,
                                        "reduce": 1.0, "pool": 1.0, "copy": 0.8})


# Predicting --------------------------------------------------------------------------------------------------------
def conv_algorithms(rates):
    x, w, y = meta((2, 3, 8, 8)), meta((5, 3, 3, 3)), meta((2, 5, 8, 8))
    cost = Cost(2.0 * 640 * 27, 4.0 * (384 + 135 + 640), "conv")
    return cpu_algorithms(replace(NOMINAL, rates=rates), "conv2d", (x, w), (y,), UNIT_STRIDE, cost), cost


def test_the_most_special_rates_win_and_what_was_not_measured_keeps_its_ratio():
    nominal, cost = conv_algorithms({})
    first, *others = nominal
    modelled = kernel_seconds(NOMINAL, "conv", cost.flops, cost.nbytes)
    assert modelled in [a.seconds for a in nominal] and len(nominal) > 2
    found, _ = conv_algorithms({f"conv2d/{first.name}": {"calls": 5.0}})
    assert found == tuple(replace(a, seconds=pytest.approx(5.0 * a.seconds / first.seconds)) for a in nominal)
    last = others[-1]
    found, _ = conv_algorithms({f"conv2d/{first.name}": {"calls": 5.0}, f"conv2d/{first.name} 3x3/1": {"calls": 7.0},
                                f"conv2d/{last.name} 3x3/2": {"calls": 9.0}})
    assert found[0].seconds == 7.0  # the last one's are for another stride
    assert found[-1].seconds == pytest.approx(7.0 * last.seconds / first.seconds)


def test_an_operation_that_was_not_measured_takes_the_rooflines_time():
    x, cost = meta((1 << 20,)), Cost(1e6, 8e6, "elementwise")
    (only,) = cpu_algorithms(NOMINAL, "relu", (x,), (x,), {}, cost)
    assert only.seconds == kernel_seconds(NOMINAL, "elementwise", 1e6, 8e6)
    (only,) = cpu_algorithms(replace(NOMINAL, rates={"relu": {"bytes": 1e-9}}), "relu", (x,), (x,), {}, cost)
    assert only.seconds == pytest.approx(8e-3)
    (only,) = cpu_algorithms(replace(NOMINAL, rates={"relu": {"bytes": 0.0}}), "relu", (x,), (x,), {}, cost)
    assert only.seconds == NOMINAL.kernel_floor_s


# From end to end -------------------------------------------------------------------------------------------------
def image_step(name, runtime, *, image=32, batch=2):
    model = models.create(name, num_classes=10)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        images = runtime.tensor(None, shape=(batch, 3, image, image))
        loss = cross_entropy(model(images), runtime.tensor(None, shape=(batch,), dtype=int64))
        loss.backward()
        optimizer.step()
    return step


def text_step(runtime):
    model = bert.bert_tiny()
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        bert.loss(model, bert.synthetic_batch(runtime, 2, Text(length=16, predictions=2))).backward()
        optimizer.step()
    return step


NETWORKS = {"bert-tiny": text_step, **{name: partial(image_step, name) for name in ("resnet18", "resnet50", "vgg11")}}


def second_trace(device, make):
    with Runtime(device, memory_budget=UNLIMITED, host_memory=0, policy="none") as runtime:
        step = make(runtime)
        for _ in range(2):
            with runtime.iteration():
                step()
                trace = runtime.trace()
    return trace


@pytest.fixture(scope="module")
def measured():
    """The samples of the quick workloads after a single iteration."""
    return [s for workload in QUICK for s in measure.train(workload, 1 << 28, iterations=1)[0]]


def test_the_simulator_with_a_profile_of_made_up_durations_tells_these_of_other_networks(measured, tmp_path):
    """Every call takes MADE_UP times its work: then that is what calibration must predict, at any size."""
    samples = [replace(s, seconds=seconds(MADE_UP, s.amounts)) for s in measured]
    found = measure.profile(samples, link.Link(3e9, 4e9, 1e-5), gap_s=1e-6, overhead_s=2e-5, free_bytes=10**9)
    path = tmp_path / "made-up.json"
    path.write_text(profiles.to_json(found))
    simulated = devices.create(f"sim:{path}")
    assert not simulated.has_values and simulated.profile == found
    assert (found.link_out_bandwidth, found.link_in_bandwidth, found.launch_overhead_s) == (3e9, 4e9, 2e-5)
    with Runtime(simulated, memory_budget=UNLIMITED, host_memory=0, policy="none") as runtime:
        step = NETWORKS["resnet18"](runtime)
        costs = {}
        algorithms = simulated.algorithms

        def noted(op_name, inputs, outputs, attrs, cost):
            ways = algorithms(op_name, inputs, outputs, attrs, cost)
            costs[op_name, tuple(inputs), tuple(outputs)] = fitted.terms(op_name, inputs, outputs, attrs, cost), ways
            return ways
        simulated.algorithms = noted
        with runtime.iteration():
            step()
    wrong = [(name, ways[0].seconds, expected) for (name, _, _), (amounts, ways) in costs.items()
             if ways[0].seconds != pytest.approx(expected := seconds(MADE_UP, amounts) + 1e-6, rel=0.05)]
    # Quick workloads do not tell all terms apart; few calls of a larger network may be off.
    assert len(wrong) <= len(costs) // 10 and len(costs) > 40, wrong


def test_the_workloads_leave_no_operation_of_training_out(measured):
    """Else a simulated step would take some of its time from a roofline."""
    known = {key for s in measured for key in s.keys}
    for name, make in NETWORKS.items():
        trace = second_trace("sim:p100", make)
        called = {ROLES[c.op].kind if c.op in ROLES else c.op for c in trace.calls}
        missing = called - {"read"} - {key.split("/")[0].split(" ")[0] for key in known}
        assert not missing, (name, missing)


def test_every_window_and_stride_of_the_networks_is_measured(measured):
    known = {key.split(" ")[1] for s in measured for key in s.keys if " " in key}
    assert known >= {"7x7/2", "3x3/1", "3x3/2", "1x1/1", "1x1/2"}


def test_a_simulated_cpu_has_the_algorithms_and_the_workspaces_of_the_real_one(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(profiles.to_json(replace(NOMINAL, rates={"add": {"bytes": 1e-9}})))
    real, simulated = (second_trace(device, NETWORKS["vgg11"])
                       for device in (devices.create("cpu:virtual").dry_twin(), f"sim:{path}"))

    def ways(trace):
        return [(c.op, sorted((a.name, a.workspace, a.bits_class) for a in c.algorithms)) for c in trace.calls]
    assert ways(simulated) == ways(real)
    assert sum(len(w) > 1 for _, w in ways(real)) > 10


# The command -------------------------------------------------------------------------------------------------------
def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["calibrate", *arguments])
    return command.main()


def test_the_command_writes_a_profile_that_devices_read(monkeypatch, tmp_path, capsys):
    asked = []
    made = replace(NOMINAL, name="measured", rates={"add": {"bytes": 1e-9}})

    def found(*, quick, note):
        asked.append(quick)
        note("copies: fast")
        return made
    monkeypatch.setattr(measure, "calibrate", found)
    path = tmp_path / "mine.json"
    assert run(monkeypatch, "--quick", "--out", str(path)) == 0
    assert asked == [True] and profiles.load(path) == made
    assert "copies: fast" in (out := capsys.readouterr().out) and "1 rates" in out
    assert devices.create(f"sim:{path}").ways.func is cpu_algorithms


def test_the_command_refuses_a_name_that_devices_would_not_read_and_a_place_it_cannot_write(monkeypatch, capsys):
    monkeypatch.setattr(measure, "calibrate", lambda **_: NOMINAL)
    assert run(monkeypatch, "--out", "mine") == 2
    assert "must end in .json" in capsys.readouterr().err
    assert run(monkeypatch, "--out", "/nowhere/mine.json") == 2
    assert "cannot write /nowhere/mine.json: No such file" in capsys.readouterr().err


def test_calibration_is_made_of_both_sets_of_workloads(monkeypatch):
    """Of every workload once for each choice of algorithm that it has."""
    seen = []
    samples = [*(sample("add", {"calls": 1.0, "bytes": n}, n * 1e-9) for n in (1e5, 1e6)),
               replace(sample("matmul", {"calls": 1.0}, 1e-3), kind="matmul", flops=1e6)]

    def train(workload, budget_bytes, *, choice):
        seen.append((workload, choice))
        return samples if not choice else [], 1e-6, 1e-5
    monkeypatch.setattr(measure, "train", train)
    monkeypatch.setattr(link, "measure", lambda: link.Link(1e9, 1e9, 1e-5))
    monkeypatch.setattr(link, "both_bandwidth", lambda: 1e9)
    for quick, workloads in ((True, QUICK), (False, THOROUGH)):
        seen.clear()
        found = calibrate.calibrate(quick=quick)
        assert seen == [(workload, choice) for workload in workloads for choice in (0, 1)]
        assert found.rates["add"] == pytest.approx({"calls": 1e-6, "bytes": 1e-9})
