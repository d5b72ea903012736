"""Plans of cuDNN that were listed without a GPU: their file, and the simulator that chooses from it."""

import dataclasses
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import minidl
from bench.support.steps import run
from minidl.device import create, profiles
from minidl.device.contract import Device
from minidl.device.cost_model import algorithms as modelled
from minidl.device.cuda import convolution, listed
from minidl.device.cuda.listed import ListedPlan, ListedPlans
from minidl.device.cuda.seam import Convolution
from minidl.device.cuda.simulated import ListedWays, steps_of
from minidl.device.cuda.timed_plans import TimedPlan
from minidl.device.sim import SimDevice
from minidl.errors import UserError
from minidl.lab.training_step import training_step
from minidl.meta import aligned, bfloat16, meta
from minidl.ops.conv import CONV2D, CONV2D_DGRAD
from minidl.outside.units import UNLIMITED

ROOT = Path(__file__).resolve().parents[2]


def conv(batch: int, c: int, k: int, size: int, window: int, *, kind: str = "conv2d", tf32: bool = True) -> Convolution:
    return Convolution(kind, "float32", (batch, c, size, size), (k, c, window, window), (batch, k, size, size), (1, 1),
                       (window // 2, window // 2), tf32)


# The file ---------------------------------------------------------------------------------------------------------
GROWING = ListedPlan("a", 0, 1000, 10, True)
STEADY = ListedPlan("b", 3, 500, 0, False)
SHAPE = listed.shape_of(conv(64, 4, 4, 8, 3))
SMALL = ListedPlans("gpu", 1, True, {SHAPE: [(16, (STEADY,)), (64, (GROWING, STEADY))]})


@pytest.mark.parametrize(("batch", "workspaces"), [
    (64, [1000, 500]), (65, [1010, 500]), (100, [1360, 500]),  # 1000 + 36 x 10
    (63, [500]), (16, [500]), (1, [500])])  # the entry of 16, which is the first
def test_a_batch_has_the_plans_of_the_largest_listed_one_that_is_no_larger(batch, workspaces):
    plans = SMALL.of(conv(batch, 4, 4, 8, 3))
    assert [p.workspace for p in plans] == workspaces
    assert [p.rank for p in plans] == [0, 3][-len(plans):] and [p.deterministic for p in plans][-1] is False


def test_a_workspace_never_shrinks_below_nothing():
    assert replace(GROWING, bytes_per_image=-600).at(2).workspace == 0


def test_what_was_not_listed_has_no_plans():
    for other in (conv(64, 4, 4, 8, 1), conv(64, 4, 4, 8, 3, kind="conv2d_wgrad"), conv(64, 4, 4, 8, 3, tf32=False)):
        assert SMALL.of(other) == ()


def test_plans_survive_their_file():
    again = ListedPlans.from_json(SMALL.to_json())
    assert again == SMALL and again.entries == SMALL.entries
    for name in ("h200", "p100"):
        plans = listed.load(name)
        assert plans.to_json() == (listed.FOLDER / f"{name}.json").read_text(encoding="utf-8")


def test_the_files_are_small_and_of_these_versions():
    assert {f.stem for f in listed.FOLDER.iterdir()} == {"h200", "p100"}
    assert all(f.stat().st_size < 300_000 for f in listed.FOLDER.iterdir())
    h200, p100 = listed.load("h200"), listed.load("p100")
    assert (h200.gpu, h200.cudnn, h200.channels_last) == ("h200", 92700, True)
    assert (p100.gpu, p100.cudnn, p100.channels_last) == ("p100", 91002, False)


def test_the_h200_has_what_cudnn_listed():  # the very numbers of that version, copied from its answer
    best = listed.load("h200").of(conv(256, 64, 64, 56, 3))[0]
    assert (best.name.split("_")[0], best.workspace, best.deterministic, best.rank) == ("eng67", 131, True, 0)
    gradient = listed.load("h200").of(conv(1014, 256, 64, 56, 1, kind="conv2d_wgrad"))[0]
    assert (gradient.name.split("_")[0], gradient.workspace) == ("eng68", 262351)
    winograd = listed.load("p100").of(conv(1014, 64, 64, 56, 3, tf32=False))[0]
    assert (winograd.name.split("_")[0], winograd.workspace) == ("eng12", 409856)


def test_every_convolution_of_the_published_networks_is_listed_at_any_batch():
    from bench.support.convolutions import BATCHES, TARGETS, convolutions
    for name, batch in (("resnet50", BATCHES["resnet50"][-1]), ("vgg16", 17)):
        for target in TARGETS.values():
            found = convolutions(name, batch, target)
            assert len(found) > 20 and all(listed.load(target.profile).of(c) for c in found)


# The choice -------------------------------------------------------------------------------------------------------
def test_modelled_times_keep_the_order_of_the_heuristics_even_where_plans_were_left_out():
    plans = [TimedPlan("best", 3000, True), TimedPlan("third", 200, True), TimedPlan("last", 0, True)]
    assert [p.seconds for p in convolution.chosen(plans, 1.0)] == pytest.approx([1.0, 1.05, 1.1])
    gaps = [replace(plan, rank=rank) for plan, rank in zip(plans, (0, 2, 20), strict=True)]
    assert [p.seconds for p in convolution.chosen(gaps, 1.0)] == pytest.approx([1.0, 1.1, 2.0])


def test_a_plan_that_another_beats_in_time_and_workspace_is_no_alternative():
    plans = [TimedPlan("best", 200, True), TimedPlan("larger", 300, True), TimedPlan("smaller", 100, True),
             TimedPlan("worse", 100, False)]
    assert [p.name for p in convolution.chosen(plans, 1.0)] == ["best", "smaller"]


# The simulator ----------------------------------------------------------------------------------------------------
def algorithms(device: Device, op, inputs, attrs):
    output = op.infer(*inputs, **attrs)
    return device.algorithms(op.name, inputs, (output,), attrs, op.cost(inputs, (output,), attrs))


WINDOW = {"stride": (1, 1), "padding": (1, 1)}


def test_the_simulated_h200_chooses_from_the_file_and_models_what_is_not_there():
    device = create("sim:h200")
    inputs = (meta((256, 64, 56, 56)), meta((64, 64, 3, 3)))
    found = algorithms(device, CONV2D, inputs, WINDOW)
    assert [a.workspace for a in found] == [aligned(p.workspace) for p in
                                            listed.load("h200").of(conv(256, 64, 64, 56, 3))]
    assert [a.bits_class for a in found] == [a.name for a in found]
    # Its best plan takes what the model gives the implicit products, on the tensor cores.
    model = algorithms(SimDevice("sim:h200", profiles.get("h200")), CONV2D, inputs, WINDOW)
    assert found[0].seconds == model[0].seconds and model[0].name == "implicit_precomp_gemm"
    odd = (meta((256, 65, 56, 56)), meta((64, 65, 3, 3)))
    plain = SimDevice("", profiles.get("h200"))
    assert algorithms(device, CONV2D, odd, WINDOW) == algorithms(plain, CONV2D, odd, WINDOW)


def test_bf16_has_plans_of_its_own():
    inputs = (meta((64, 3, 224, 224), bfloat16), meta((64, 3, 7, 7), bfloat16))
    found = algorithms(create("sim:h200"), CONV2D, inputs, {"stride": (2, 2), "padding": (3, 3)})
    stem = Convolution("conv2d", "bfloat16", *(m.shape for m in inputs), (64, 64, 112, 112), (2, 2), (3, 3))
    assert [a.name for a in found] == [p.name for p in listed.load("h200").of(stem)]
    assert found[0].workspace == 0  # in TF32 the best needs 37 MiB


def test_a_gradient_that_is_added_onto_another_is_made_in_parts_beside_it():
    dy, w, x = meta((256, 64, 56, 56)), meta((64, 64, 3, 3)), (256, 64, 56, 56)
    found = algorithms(create("sim:h200"), CONV2D_DGRAD, (dy, w, meta(x)), {**WINDOW, "x_shape": x})
    # 256 x 64 x 56 x 56 x 4 bytes are 196 MiB, so four parts of 49 MiB; the plan for 64 images runs in each.
    plan = listed.load("h200").of(conv(64, 64, 64, 56, 3, kind="conv2d_dgrad"))[0]
    assert found[0].workspace == 49 * 2**20 + aligned(plan.workspace)


@pytest.mark.parametrize(("device", "batch"), [("sim:h200", 64), ("sim:p100-cudnn", 64)])
def test_workspaces_in_a_trace_are_those_of_the_file(device, batch):
    simulated = create(device)
    assert isinstance(simulated.ways, ListedWays)
    wanted, steps = {}, simulated.algorithms

    def spy(op_name, inputs, outputs, attrs, cost):
        if op_name in convolution.KINDS:
            found = steps_of(simulated.profile, op_name, inputs, outputs[0], attrs)
            sizes = [found.scratch + aligned(p.workspace) for p in simulated.ways.listed.of(found.convolution)]
            wanted.setdefault(op_name, set()).add(tuple(sorted(sizes)))
        return steps(op_name, inputs, outputs, attrs, cost)
    simulated.algorithms = spy
    with minidl.Runtime(simulated, policy="none", memory_budget=UNLIMITED, deterministic=False) as runtime:
        step = training_step("resnet50", batch)
        with runtime.iteration():
            step()
            trace = runtime.trace()
    seen = {}
    for call in trace.calls:
        if call.op in convolution.KINDS:
            seen.setdefault(call.op, set()).add(tuple(sorted(a.workspace for a in call.algorithms)))
    assert seen == wanted and set(seen) >= {"conv2d", "conv2d_dgrad", "conv2d_wgrad"}
    assert sum(call.op in convolution.KINDS for call in trace.calls) == 3 * 53 - 1  # images want no gradient


def test_a_managed_step_runs_on_the_simulated_h200():
    free = run("resnet50", 256, "none", steps=2, device="sim:h200", budget=UNLIMITED)
    managed = run("resnet50", 256, "capuchin", steps=4, device="sim:h200", budget=free.last.peak_bytes * 6 // 10)
    assert managed.last.swapped_out_bytes + managed.last.recomputed_bytes > free.last.peak_bytes // 3
    assert free.images_per_second > managed.images_per_second > free.images_per_second / 3


def test_the_calibrated_p100_keeps_its_modelled_algorithms():
    assert not isinstance(create("sim:p100").ways, ListedWays) and not profiles.get("p100").cudnn_plans
    with_plans = dataclasses.asdict(profiles.get("p100-cudnn"))
    assert {key for key, value in dataclasses.asdict(profiles.get("p100")).items() if with_plans[key] != value} == {
        "name", "title", "cudnn_plans"}
    inputs = (meta((64, 512, 28, 28)), meta((512, 512, 3, 3)))
    cost = CONV2D.cost(inputs, inputs[:1], WINDOW)
    found = create("sim:p100-cudnn").algorithms("conv2d", inputs, inputs[:1], WINDOW, cost)
    model = modelled(profiles.get("p100"), "conv2d", inputs, inputs[:1], WINDOW, cost)
    # cuDNN's best is a fused Winograd: the model's with little workspace, not its fastest, which stores the tiles. Its
    # transformed filters, 5 x 5 values each, are more than the deterministic mode's plan may need.
    best = found[1]
    assert best.name.startswith("eng12_") and best.workspace > 512 * 512 * 25 * 4 > convolution.MOST_WORKSPACE
    assert best.seconds == next(a.seconds for a in model if a.name == "winograd") > model[0].seconds
    assert found[0].workspace < convolution.MOST_WORKSPACE and found[0].seconds > best.seconds


def test_a_profile_that_names_plans_which_nobody_listed_is_refused(tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(profiles.to_json(replace(profiles.get("h200"), cudnn_plans="h300")), encoding="utf-8")
    with pytest.raises(UserError, match=r"no plans of cuDNN were listed for 'h300'; known: h200, p100"):
        create(f"sim:{path}")
    path.write_text(profiles.to_json(replace(profiles.get("a100"), cudnn_plans="h200")), encoding="utf-8")
    assert isinstance(create(f"sim:{path}").ways, ListedWays)
    text = profiles.to_json(profiles.get("a100")).replace('"cudnn_plans": ""', '"cudnn_plans": 3')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"Expected `str`, got `int` - at `\$\.cudnn_plans`"):
        create(f"sim:{path}")


@pytest.mark.parametrize("name", ["h200", "p100"])
def test_cudnn_lists_the_plans_of_the_file(name):
    if importlib.util.find_spec("cudnn") is None:
        pytest.skip("nvidia-cudnn-frontend is not installed")
    result = subprocess.run([sys.executable, "-m", "bench.cudnn_plans", "--profile", name, "--models", "resnet50",
                             "--check", "20"], cwd=ROOT, capture_output=True, text=True, check=False)
    if "the file is of cuDNN" in result.stderr:
        pytest.skip(result.stderr.splitlines()[-1])
    assert result.returncode == 0, result.stderr[-2000:]
    assert "convolutions have the plans of the file" in result.stdout
