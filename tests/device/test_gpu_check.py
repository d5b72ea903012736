"""The check of a GPU, rehearsed without one: every part at its smallest on a vendor that judges each call, on the CPU
or on a simulator; and seen to fail where something is wrong, so that the day a GPU is there only the GPU can be.
"""

import json
import pickle
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import FakeCuda, JudgedCuda
from swapping import rounds_of_swapping

from bench.gpu_check import bandwidth, identity, ops, samples, speed, steps, warm
from bench.gpu_check import command as gpu
from bench.gpu_check.parts import PARTS, run
from bench.gpu_check.report import SECTIONS, markdown
from bench.gpu_check.setting import Record, Setting, Training
from bench.gpu_check.sizes import CUT, FULL, MIRRORED, NAMED, QUICK, TINY
from bench.support.kernel_cases import OPS, Case
from minidl import Runtime, models
from minidl.device import profiles
from minidl.device.clock import COPY_IN
from minidl.device.cost_model import algorithms as modelled
from minidl.device.cuda import missing
from minidl.device.cuda.device import CudaDevice
from minidl.device.cuda.simulated import MeasuredWays
from minidl.kernels.cpu import COMPOSED, KERNELS
from minidl.memory.switches import Switches
from minidl.meta import Cost, float32, meta

FAKE = replace(profiles.get("h200"), name="fake")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def fake(name, precision):
    return JudgedCuda(FAKE, numerics=True)


def setting(folder, device="cuda", sizes=TINY, **options):
    """On the judged vendor for "cuda", else on the device of this name."""
    return Setting(device, sizes, folder, **({"opened": fake} if device == "cuda" else {}), **options)


def carried_out(name, given):
    """A part's record."""
    record = Record(tell=lambda line: None)
    run(PARTS[name], given, record)
    return record


def all_parts(given, names=PARTS):
    """The results of these parts, each of which sees those before."""
    results = {}
    for name in names:
        record = carried_out(name, replace(given, results=results))
        results[name] = json.loads(json.dumps(record.as_data()))
    return results


# Everything, on the fake vendor -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return all_parts(setting(tmp_path_factory.mktemp("gpu")))


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_part_runs_on_a_vendor_that_judges_every_call(results, name):
    torch = name not in ("models", "speed", "torch") or pytest.importorskip("torch")
    assert torch and not results[name]["failures"]
    if name == "sanitizer" and not results[name]["found"]:
        assert results[name]["left out"] == ["compute-sanitizer is not installed"]
    else:
        assert results[name]["found"] and not results[name]["left out"]


@pytest.mark.slow
def test_every_operation_that_is_launched_is_compared(results):
    compared = {op for key, found in results["ops"]["found"].items() if key.startswith("float32") for op in found}
    assert compared | {"normal_", "uniform_"} == {name for name, op in OPS.items() if not op.view} - COMPOSED


@pytest.mark.slow
def test_the_page_has_every_part_and_every_target_that_was_measured(results):
    page = markdown({name: {**part, "sizes": "tiny"} for name, part in results.items()})
    for name in SECTIONS:  # the comparison with PyTorch is left out where that is not installed, and says so
        assert (f"\n## {name.capitalize()}\n" in page) == bool(results[name]["found"]), name
        assert results[name]["found"] or results[name]["left out"], name
    for words in ("speed beside the bound's", "the simulator is off by", "tracking: share of a step",
                  "host time an operation", "pieces of state with other bits | 0 | 0 | yes"):
        assert words in page, words
    assert "## What is wrong\n\nNothing.\n" in page


def test_the_page_says_first_what_is_wrong_then_what_is_slow_then_what_was_not_reached():
    trace = "".join(f'  File "{file}.py", line {line}, in f\n' for file, line in (
        ("/x/minidl/a", 3), ("/x/minidl/device/b", 7), ("/y/c", 9)))
    part = {"found": {}, "failures": [f"ops: DeviceError: out of memory\n{trace}"], "left out": ["models"]}
    speed = {"found": {"resnet50": {"batch": 1, "seconds": {"minidl": [2.0]}, "peak bytes": 1, "ratio": 0.5}},
             "failures": [], "left out": []}
    page = markdown({"ops": part, "speed": speed})
    wrong, slow, left = (page.index(f"## What {words}") for words in ("is wrong", "is slow", "was not reached"))
    assert wrong < slow < left < page.index("## Wanted and reached")
    assert "* ops: ops: DeviceError: out of memory (device/b.py:7)\n" in page[wrong:slow]
    assert "* resnet50: speed beside PyTorch's: 0.50, wanted at least 1\n" in page[slow:left]
    assert "* ops: models\n" in page[left:]


@pytest.mark.slow
def test_what_was_measured_is_a_profile_that_the_simulator_reads(results):
    profile = profiles.load(results["prediction"]["found"]["profile"])
    assert profile.rates_of == "cuda" and {"linear", "matmul", "softmax", "layer_norm"} <= profile.rates.keys()
    # The fake copies 64 KiB at 50 GB/s, with 10 microseconds of latency and 1 for each of the host's calls.
    assert profile.link_out_bandwidth == pytest.approx((1 << 16) / (10e-6 + (1 << 16) / 50e9), rel=0.2)


@pytest.mark.slow
def test_copies_both_ways_at_once_are_twice_as_fast_as_one_way(results):
    link = results["link"]["found"]
    assert link["both ways"] > 1.8 * link["out"] and link["within the device"] > 4 * link["out"]


@pytest.mark.parametrize(("filled", "pace", "took"), [(1 << 24, "device", 1e-7), (64, "host", 1e-6)])
def test_a_kernel_shorter_than_its_launch_has_its_own_time_if_the_device_is_busy(monkeypatch, filled, pace, took):
    monkeypatch.setattr("fake_cuda.KERNEL_S", 1e-7)
    x, device = meta((4, 256), float32), JudgedCuda(FAKE, numerics=False)
    found, by = bandwidth.seconds(device, "relu", (x, x), {}, replace(TINY, calls=20, link_bytes=filled))
    device.close()
    assert by == pace and found == pytest.approx(took, rel=0.2)


def test_contenders_take_turns_and_each_is_timed_by_its_own_clock_until_it_has_ended():
    now, order = {"slow": 0.0, "fast": 0.0}, []

    def contender(name, seconds):
        queued = []

        def settle():
            now[name] += sum(queued)
            queued.clear()

        def step():
            order.append(name)
            queued.append(seconds)
        return speed.Contender(step, settle, lambda: now[name])
    seconds = speed.take_turns({"slow": contender("slow", 2.0), "fast": contender("fast", 0.5)}, 3, 2)
    assert seconds == {"slow": [2.0] * 3, "fast": [0.5] * 3}
    assert order == ["slow"] * 2 + ["fast"] * 4 + ["slow"] * 4 + ["fast"] * 2


def small(folder, name):
    """A part alone on the judged vendor."""
    record = carried_out(name, setting(folder))
    return record.found, record.failures


def test_each_kind_of_call_is_found_in_its_place(tmp_path):
    found, failures = small(tmp_path, "order")
    assert not failures and found == dict.fromkeys(("copy", "fill", "launch", "gemm", "convolve", "attend"), 0)


@pytest.mark.parametrize("kind", ["gemm", "launch", "convolve", "attend"])
def test_a_call_that_runs_before_what_was_given_before_it_is_told_of(tmp_path, monkeypatch, kind):
    # On another stream it would find X as it was, and what follows it Y as it was: here as if it had never run.
    right, runs = getattr(FakeCuda, kind), []

    def wrong(self, *arguments):
        held, self.numerics = self.numerics, False
        try:
            right(self, *arguments)
            runs.append(kind)
        finally:
            self.numerics = held
    monkeypatch.setattr(FakeCuda, kind, wrong)
    _, failures = small(tmp_path, "order")
    (failure,) = failures
    assert runs and failure.startswith(f"{kind}: 65536 of 65536 elements are not")


def test_every_kernel_that_is_compiled_ahead_reaches_another_process_under_its_own_name():
    for dtype in TINY.dtypes:
        wanted = list(warm.sources(dtype, TINY.ops_block))
        assert len(wanted) > 200
        for source in wanted:
            there = pickle.loads(pickle.dumps(source))
            assert there.name == source.name and there.make is source.make


def test_sizes_beyond_32_bits_are_left_out_where_memory_is_short_and_looked_at_where_it_is_not(tmp_path):
    found, failures = small(tmp_path, "large")
    assert not failures and set(found) == {f"{name} of {3 * 64 * 36} elements" for name in ("add", "conv2d")}
    record = carried_out("large", setting(tmp_path, "cpu:virtual", replace(TINY, large=(1 << 24, 112))))
    assert not record.found and record.unfinished[0].startswith("more than 2^31 elements need")
    assert FULL.large[0] * 64 * FULL.large[1] ** 2 > 1 << 31


def test_a_copy_that_changes_bits_is_told_of(tmp_path, monkeypatch):
    right = KERNELS["contiguous"]

    def wrong(y, x):
        right(y, x)
        if y.dtype.name == "bfloat16":
            y[np.isinf(y.astype(np.float32))] = np.nan
    monkeypatch.setitem(KERNELS, "contiguous", wrong)
    record = Record(tell=lambda line: None)
    with setting(tmp_path, "cpu:virtual").runtime(memory_budget=1 << 24) as runtime:
        ops.check_bits(runtime, record)
    assert record.failures == ["a copy changes 2 of the bit patterns of bfloat16, transposed"]


# Predictions ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_simulator_is_predicted_from_its_own_measurements(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "find_spec", lambda name: None)
    sizes = replace(TINY, speed=(Training("resnet18", 32, side=64), Training("resnet50", 16)), plans=2,
                    managed=(Training("resnet50", 24),), managed_bytes=1300 << 20, host_bytes=8 << 30)
    given = setting(tmp_path, "sim:p100", sizes)
    given = replace(given, results={"properties": {"found": {"profile": asdict(profiles.get("p100"))}}})
    results = dict(given.results)
    for name in ("link", "speed", "managed", "prediction"):
        record = carried_out(name, replace(given, results=results))
        assert not record.failures
        results[name] = record.as_data()
    found = results["prediction"]["found"]
    for run_name in ("resnet18 at 32", "resnet50 at 16", "resnet50 at 24, unmanaged", "resnet50 at 24, managed"):
        assert abs(found[run_name]["off"]) < 0.05, run_name  # a roofline is no sum: it is not fitted exactly
    assert results["managed"]["found"]["resnet50 at 24"]["last"]["out"] > 0
    assert 0.8 < found["resnet50 at 24, bound"]["share"] <= 1.0


def test_rates_of_a_gpu_scale_its_alternatives_and_leave_their_order():
    known = profiles.get("p100")
    taken = [samples.Sample(("conv2d 7x7/1", "conv2d"), "conv", 1e9, 1e6, {"flops": n * 1e9}, n * 1e-3)
             for n in range(1, 20)]
    taken += [samples.Sample((kind,), kind, 1e6, 1e6, {"bytes": 1e6}, 1e-6) for kind in ("elementwise", "reduce")]
    link = {"out": 5e10, "in": 5e10, "within the device": 4e12, "latency": 1e-5}
    measured = samples.fitted_profile(known, taken, link, launch_s=1e-5)
    x = meta((8, 256, 28, 28))
    arguments = ("conv2d", (x, meta((256, 256, 7, 7))), (x,), {"stride": (1, 1), "padding": (3, 3)},
                 Cost(4e10, 1e6, "conv"))
    before = modelled(measured, *arguments)
    assert min(before, key=lambda a: a.seconds) is not before[0]  # the deterministic mode's comes first
    after = MeasuredWays(measured)(*arguments)
    assert min(a.seconds for a in after) == pytest.approx(4e-2)  # 4e10 operations at 1e-12 seconds each
    assert [(a.name, a.workspace) for a in after] == [(a.name, a.workspace) for a in before]
    ratios = [a.seconds / b.seconds for a, b in zip(after, before, strict=True)]
    assert max(ratios) == pytest.approx(min(ratios))


# Seen to fail -----------------------------------------------------------------------------------------------------
def errors_of(name, monkeypatch, kernel, device="cpu:virtual"):
    """The error of one operation, (operands as uploaded, and permuted), whose kernel is replaced."""
    monkeypatch.setitem(KERNELS, name, kernel)
    case = Case(name, ((6, 70),), {"neg": np.negative, "relu": lambda x: np.maximum(x, 0)}[name])
    given = setting(Path("unused"), device)
    with given.runtime(poisoned=True, memory_budget=1 << 22) as runtime:
        return [ops.error_of(runtime, case, "float32", 3, permuted=permuted) for permuted in (False, True)]


@pytest.mark.parametrize("device", ["cpu:virtual", "cuda"])
def test_an_output_that_is_not_written_everywhere_has_an_error_that_is_no_number(monkeypatch, device):
    def partial_kernel(y, x):
        y[:3] = -x[:3]
    assert np.isnan(errors_of("neg", monkeypatch, partial_kernel, device)).all()


@pytest.mark.parametrize("device", ["cpu:virtual", "cuda"])
def test_a_result_that_is_off_by_a_thousandth_is_off_by_a_thousandth(monkeypatch, device):
    def wrong(y, x):
        y[...] = -x * np.float32(1.001)
    assert errors_of("neg", monkeypatch, wrong, device) == pytest.approx([1e-3, 1e-3], rel=1e-2)


@pytest.mark.parametrize(("factor", "rows", "off"), [(1.0001, 5, "1.0e-04"), (1.0, 3, "nan")])
def test_wrong_operations_are_failures_that_name_the_case(tmp_path, monkeypatch, factor, rows, off):
    def wrong(y, x):
        y[:rows] = -x[:rows] * np.float32(factor)
    monkeypatch.setitem(KERNELS, "neg", wrong)
    monkeypatch.setattr(ops.kernel_cases, "cases", lambda block: iter([Case("neg", ((5,),), np.negative)]))
    monkeypatch.setattr(ops, "larger", lambda: iter([]))
    record = carried_out("ops", setting(tmp_path, "cpu:virtual"))
    assert len(record.failures) == 2
    assert record.failures[0].startswith(f"neg-5 in float32 (fp32), as uploaded: off by {off}, allowed")


def test_bits_that_a_manager_changes_are_found(tmp_path, monkeypatch):
    right = CudaDevice.copy_in

    def wrong(self, offset, host, nbytes):
        position = right(self, offset, host, nbytes)
        if nbytes > 1 << 16:  # of floats; one of them becomes 1e-28
            self.vendor.fill(self._arena + offset, 0x11, 4, self.streams.handles[COPY_IN])
        return position
    monkeypatch.setattr(CudaDevice, "copy_in", wrong)
    monkeypatch.setattr(identity, "POLICIES", {"passive": identity.POLICIES["passive"]})
    monkeypatch.setattr(identity, "STEPS", {"passive": 3})
    record = carried_out("identity", setting(tmp_path))
    assert record.failures and "pieces of state differ" in record.failures[0]


def test_a_device_that_does_not_repeat_itself_is_told_apart(tmp_path, monkeypatch):
    numbers = iter(range(100))
    right = steps.Network.state
    monkeypatch.setattr(steps.Network, "state", lambda self, losses: right(self, [float(next(numbers))]))
    record = carried_out("identity", setting(tmp_path))
    assert record.failures == ["lenet at 64 in tf32: two unmanaged runs differ in 1 pieces of state, as losses"]


def test_gradients_that_are_wrong_are_a_failure(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    right = KERNELS["tanh_grad"]

    def wrong(dx, dy, y):
        right(dx, dy, y)
        dx *= np.float32(1.01)
    monkeypatch.setitem(KERNELS, "tanh_grad", wrong)
    record = carried_out("models", setting(tmp_path, "cpu:virtual"))
    assert [words.partition(" off")[0] for words in record.failures] == ["lenet in fp32: gradients",
                                                                          "lenet in tf32: gradients"]


# PyTorch's side ---------------------------------------------------------------------------------------------------
FAMILIES = (Training("vgg11", 2, side=32), Training("vgg11_bn", 2, side=32), Training("resnet18", 2, side=32),
            Training("inception_v3_aux", 2), Training("inception_v4", 2), Training("densenet121", 2, side=64),
            Training("unet-small", 1, side=32), Training("bert-tiny", 2, length=16), Training("gpt2", 1, length=16),
            Training("resnext50_32x4d", 2, side=32), Training("mobilenet_v3_small", 2, side=32),
            Training("mobilenet_v3_large", 2, side=32), Training("efficientnet_b0", 2, side=32),
            Training("vit_b_32", 2, side=32), Training("convnext_tiny", 2, side=32),
            Training("llama-tiny", 2, length=16), Training("t5-small", 1, length=16),
            Training("flan-t5-small", 1, length=16), Training("lenet", 2), Training("mlp", 2))


def test_every_operation_of_a_forward_pass_has_a_formula_in_pytorch():
    pytest.importorskip("torch")
    from bench.gpu_check.mirror import FORMULAS
    called = set()
    for training in FAMILIES:
        for fused in (True, False):
            with Runtime("sim:p100", policy="none", memory_budget=1 << 50, precision="bf16",
                         switches=Switches(fused=fused)) as runtime:
                network, run_op = steps.Network(runtime, training), runtime.executor.run

                def noted(op, *arguments, run_op=run_op):
                    if op.mutates is None:
                        called.add(op.name)
                    return run_op(op, *arguments)
                runtime.executor.run = noted
                network.loss()
    assert called <= FORMULAS.keys()


@pytest.mark.parametrize("training", [Training("lenet", 4), Training("unet-small", 1, side=32),
                                      Training("bert-tiny", 2, length=16, options={"vocabulary": 100}),
                                      Training("llama-tiny", 3, length=64, options={"vocabulary": 100}),
                                      Training("flan-t5-small", 2, length=16, options=CUT | {"layers": 1})],
                         ids=lambda training: training.model)
def test_losses_and_gradients_in_every_precision_are_those_of_pytorch(tmp_path, training):
    pytest.importorskip("torch")
    sizes = replace(TINY, mirrored=(training,), precisions=("tf32", "bf16"))
    record = carried_out("models", setting(tmp_path, "cpu:virtual", sizes))
    assert not record.failures and len(record.found) == 3
    exact, rounded = (record.found[f"{training.model} in {p}"]["ours"]["gradients"] for p in ("fp32", "bf16"))
    assert exact < 1e-5 < 1e-4 < rounded  # the second is measured against exact gradients too


# What is for -m gpu -----------------------------------------------------------------------------------------------
def test_the_order_of_streams_is_tried_with_copies_both_ways(tmp_path):
    found, right, moved = rounds_of_swapping(setting(tmp_path, "cuda"), rounds=14, rows=1 << 12)
    assert moved > 0 and all((a == b).all() for a, b in zip(found, right, strict=True))


def test_without_a_gpu_its_tests_are_skipped_for_one_reason_in_one_line():
    lacking = missing.message()
    assert lacking is None or "\n" not in lacking


# The command ------------------------------------------------------------------------------------------------------
def command(*arguments, module=False):
    program = ["-m", "bench.gpu"] if module else [str(ROOT / "bench" / "gpu.py")]
    return subprocess.run([sys.executable, *program, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                          check=False)


def test_the_command_runs_parts_apart_and_adds_to_what_is_there(tmp_path):
    first = command("--device", "sim:p100", "--sizes", "tiny", "--parts", "link", "--out", tmp_path)
    assert first.returncode == 0 and "out: 12.4 GB/s" in first.stdout, first.stderr
    second = command("--device", "sim:nowhere", "--sizes", "tiny", "--parts", "convolutions", "--out", tmp_path,
                     module=True)
    assert second.returncode == 1
    results = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert results["link"]["found"]["out"] == 12.4e9 and "Traceback" in results["convolutions"]["failures"][0]
    assert "no GPU profile 'nowhere'" in (tmp_path / "gpu.md").read_text()


@pytest.mark.parametrize(("ending", "words"), [(-11, "ended with code -11"), (1, "ended early"), (None, "ended after")])
def test_a_part_whose_process_dies_costs_itself_alone(tmp_path, monkeypatch, ending, words):
    begun = []

    def run_apart(command, *, timeout, check, env):
        begun.append(command[command.index("--one") + 1])
        if ending is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return SimpleNamespace(returncode=ending)
    monkeypatch.setattr(gpu.subprocess, "run", run_apart)
    assert gpu.main(["--device", "sim:p100", "--parts", "host", "link", "--out", str(tmp_path)]) == 1
    assert begun == ["link", "host"]  # in the order of the parts
    for part in json.loads((tmp_path / "gpu.json").read_text())["parts"].values():
        assert len(part["failures"]) == 1 and words in part["failures"][0]


def test_a_part_for_which_no_time_is_left_is_a_failure(tmp_path):
    late = command("--device", "sim:p100", "--minutes", "0", "--parts", "link", "--out", tmp_path)
    assert late.returncode == 1 and "FAILED not run: the 0 minutes were over" in late.stdout


@pytest.mark.skipif(missing.has_driver(), reason="there is a driver")
def test_without_a_driver_one_line_says_so():
    refused = command()
    assert refused.returncode == 1 and refused.stderr.startswith("the check could not begin: --device cuda needs")
    assert refused.stderr.count("\n") == 1


def test_the_whole_check_has_every_model_and_the_runs_that_are_wanted():
    assert {training.model for training in MIRRORED} == models.MODELS.keys()
    assert [(t.model, t.batch) for t in FULL.speed] == [("resnet50", 256), ("vgg16", 128), ("bert-base", 64)]
    assert [t.batch for t in FULL.managed] == [1014, 1440] and FULL.managed_bytes == 16 << 30
    assert FULL.ops_every == 1 and set(FULL.dtypes) == set(QUICK.dtypes) == set(ops.TOLERANCE)
    assert set(NAMED) == {"full", "quick", "tiny"}


def test_the_check_of_a_gpu_leaves_pytorchs_own_trace_of_it_off():
    """Once it is on, each allocation and event calls into Python, which also fails in threads of autograd."""
    pytest.importorskip("torch")
    code = "import sys; import bench.gpu_check.inside; sys.exit('torch.cuda._sanitizer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
