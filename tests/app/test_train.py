"""train.py from the outside: flags, messages, exit codes, files, and numbers that must be true when tried."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import train
from minidl import Runtime
from minidl.cli.app.flags import parse
from minidl.cli.app.kinds import Share
from minidl.cli.app.options import DIGITS_BATCH
from minidl.data import Digits
from minidl.errors import UserError
from minidl.report.meter import Meter, rate, share
from minidl.report.result import KEYS, LargestOp, RankMemory, Result
from minidl.report.summary import summary

ROOT = Path(__file__).parents[2]
LENET = ["--model", "lenet", "--batch", "100", "--steps", "2"]
SCORES = {"accuracy", "accuracy_top5", "dice", "masked_lm_loss", "masked_lm_accuracy", "next_sentence_accuracy",
          "next_token_loss"}
NOT_OF_DIGITS = SCORES - {"accuracy", "accuracy_top5"} | {
    "examples_per_second",  # they are at hand: nothing is decoded
    "unmanaged_step_seconds"}
ON_DIGITS = ["--model", "lenet", "--data", "digits", "--memory-budget", "16MiB", "--host-memory", "16MiB"]


def refused(capsys, *flags):
    """The one message of a run that must be refused."""
    assert train.main(list(flags)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("train.py: error: ")
    return lines[0].removeprefix("train.py: error: ")


def result_of(tmp_path, *flags):
    path = tmp_path / "result.json"
    assert train.main([*flags, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def number(pattern, text):
    return int(re.search(pattern, text)[1])


# Messages ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("flags", "message"), [
    (["--bacth", "3"], "unknown argument --bacth; did you mean --batch"),
    (["--polcy=none"], "unknown argument --polcy=none; did you mean --policy"),
    (["--mod", "vgg16"], "unknown argument --mod; did you mean --model or"),  # no abbreviations
    (["vgg16"], "unknown argument vgg16; see --help"),
    (["--model", "resnet51"], "no model is called 'resnet51'; did you mean resnet50"),
    (["--model", "nowhere:network"], "cannot load the model nowhere:network"),
    (["--policy", "pasive"], "--policy: there is no policy 'pasive'; did you mean passive"),
    (["--device", "sim:p10"], "no GPU profile 'p10'; did you mean p100"),
    (["--device", "sim:nowhere.json"], "cannot read profile nowhere.json: No such file"),
    (["--device", "cuda"], "--device cuda needs"),
    (["--data", "digit"], "--data digit: there is no such file or folder; did you mean digits?"),
    (["--batch", "0"], "--batch-size/-b: must be max or a whole number of at least 1, not 0"),
    (["--steps", "-1"], "--steps: must be a whole number of at least 1, not -1"),
    (["--seed", "-1"], "--seed: must be a whole number of at least 0, not -1"),
    (["--lr", "nan"], "--lr: must be a number of at least 0, not nan"),
    (["--wd", "inf"], "must be a number of at least 0 and at most 1e+30, not inf"),
    (["--momentum", "much"], "--momentum: must be a number of at least 0, not much"),
    (["--memory-budget", "16G"], "--memory-budget: '16G' is not a size in bytes"),
    (["--memory-budget", "0"], "--memory-budget: must be at least 1 byte, not 0"),
    (["--memory-budget", "0%"], "--memory-budget: must be a percentage above 0, not 0"),
    (["--memory-budget", "200"], "--memory-budget must be at least 256 bytes"),
    (["--host-memory", "-3"], "--host-memory: '-3' is not a size in bytes"),
    (["--memory-budget", "50%", "--batch", "max"], "a percentage is one of the peak at a batch"),
    (["--steps", "3", "--epochs", "3"], "not allowed with argument"),
    (["--epochs", "3"], "synthetic data has no epochs"),
    (["--opt", "adam", "--momentum", "0.5"], "adam takes no --momentum"),
    (["--model", "vgg16", "--image-size", "8"], "max_pool2d: a 2x2 window does not fit [32, 512, 1, 1]"),
    (["--model", "lenet", "--image-size", "64"], "lenet needs images of 28x28, 30x30 or 32x32 pixels, not 64x64"),
    (["--data", "digits", "--image-size", "7", "--model", "mlp"], "--image-size must be at least 8, not 7"),
    (["--data", "digits", "--num-classes", "5"], "the digits have 10 classes"),
    ([*ON_DIGITS, "--batch", "2000"], "there are only 1438 images to train on"),
    (["--json", "/nowhere/result.json"], "cannot write /nowhere/result.json: No such file or directory"),
    (["--device", "cpu", "--save-weights", "/"], "cannot write /: Is a directory"),
    (["--save-weights", "never.safetensors"], "--save-weights: sim:p100 computes no values"),
    (["--batch", "max", "--memory-budget", "1MiB"], "not even a batch of 1 fits 1.0 MiB"),
])
def test_what_cannot_be_done_is_refused_with_one_message_and_exit_code_2(capsys, flags, message):
    assert message in refused(capsys, *flags)


def test_digits_without_scikit_learn_say_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert 'pip install "minidl[data]"' in refused(capsys, "--data", "digits", "--model", "lenet")


def test_a_refusal_shows_no_traceback_and_ends_the_program_with_2():
    run = subprocess.run([sys.executable, str(ROOT / "train.py"), "--model", "vgg17"], capture_output=True, text=True,
                         cwd=ROOT)
    assert run.returncode == 2 and "Traceback" not in run.stderr and "did you mean vgg1" in run.stderr


def test_a_refused_run_leaves_files_as_they_were(capsys, tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("kept")
    for path in (old, new):
        refused(capsys, *LENET, "--slices", "1", "--memory-budget", "1MiB", "--json", str(path))
    assert old.read_text() == "kept" and not new.exists()


# What fits ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flags", [
    ["--slices", "1", "--policy", "passive", "--memory-budget", "3MiB"],
    ["--slices", "1", "--policy", "none", "--memory-budget", "3MiB"],
    ["--slices", "1", "--policy", "recompute", "--memory-budget", "3MiB"],
    ["--slices", "1", "--policy", "passive", "--memory-budget", "3MiB", "--host-memory", "0"],
])
def test_the_numbers_of_a_refusal_are_exact(capsys, flags):
    message = refused(capsys, *LENET, *flags)
    least = number(r"smallest budget that would do is (\d+) bytes", message)
    batch = number(r"largest batch that would do in this budget is (\d+)", message)
    # 100 x 6 x 28 x 28 floats, read twice by tanh's gradient, which writes over one of them; aligned to 256.
    assert "tanh_grad, needs 3763200 bytes (3.6 MiB)" in message
    assert train.main([*LENET, *flags, "--memory-budget", str(least)]) == 0
    assert train.main([*LENET, *flags, "--batch", str(batch)]) == 0
    capsys.readouterr()
    refused(capsys, *LENET, *flags, "--memory-budget", str(least - 256))
    refused(capsys, *LENET, *flags, "--batch", str(batch + 1))


def test_the_largest_batch_is_run_and_one_more_is_refused(capsys, tmp_path):
    flags = ["--model", "lenet", "--steps", "2", "--memory-budget", "3MiB"]
    batch = result_of(tmp_path, *flags, "--slices", "1", "--batch", "max")["batch"]
    out = capsys.readouterr().out
    assert f"the largest batch is {batch}: at {batch + 1} tanh_grad alone needs" in out
    refused(capsys, *flags, "--slices", "1", "--batch", str(batch + 1))
    assert train.main([*flags, "--batch", str(batch + 1)]) == 0
    assert re.search(r"in \d+ slices: tanh_grad alone takes", capsys.readouterr().out)


def test_the_largest_batch_says_when_host_memory_is_the_limit(capsys):
    flags = ["--model", "lenet", "--steps", "2", "--memory-budget", "3MiB", "--host-memory", "1MiB", "--slices", "1"]
    assert train.main([*flags, "--batch", "max"]) == 0
    assert re.search(r"the largest batch is \d+: a batch of \d+ needs more than the 1.0 MiB of host memory",
                     capsys.readouterr().out)


def test_the_largest_batch_of_a_data_set_is_all_of_it(capsys, tmp_path):
    flags = ["--model", "lenet", "--data", "digits", "--device", "sim:p100", "--batch", "max", "--steps", "1"]
    assert result_of(tmp_path, *flags)["batch"] == 1438
    assert "there is no more than 1438" in capsys.readouterr().out


@pytest.mark.slow
def test_a_percentage_is_of_the_unmanaged_peak_and_the_run_stays_below_it(tmp_path):
    result = result_of(tmp_path, "--model", "resnet18", "--batch", "16", "--memory-budget", "40%", "--policy",
                       "passive")
    assert result["budget_bytes"] == int(0.4 * result["unmanaged_peak_bytes"]) // 256 * 256
    assert 0.5 * result["budget_bytes"] < result["peak_bytes"] <= result["budget_bytes"]
    assert result["swapped_out_bytes"] > 0 and result["host_peak_bytes"] > 0


# Results -----------------------------------------------------------------------------------------------------------
def test_a_result_has_exactly_the_documented_keys():
    assert [field.name for field in fields(Result)] == list(KEYS)
    page = (ROOT / "docs" / "results.md").read_text()
    assert not [key for key in KEYS if f"`{key}`" not in page]


def test_the_main_job_on_a_simulator_gives_every_number_and_no_loss(capsys, tmp_path):
    result = result_of(tmp_path, "--model", "resnet50", "--batch", "1014", "--steps", "3")
    assert list(result) == list(KEYS)
    assert result["versions"]["numpy"] == np.__version__ and sys.version.startswith(result["versions"]["python"])
    assert {key for key, value in result.items() if value is None} == {
        "loss", *SCORES, "examples_per_second", "planning_seconds", "planning_share"}
    assert result["peak_bytes"] <= result["budget_bytes"] == 15_127 * 2**20
    # 85.1 MB an image, less the output of the first ReLU, which a fused batch norm does not keep
    assert result["unmanaged_peak_bytes"] == pytest.approx(1014 * (85.1e6 - 3.2e6) + 0.31e9, rel=0.02)
    assert result["items_per_second"] == pytest.approx(1014 / result["step_seconds"])
    assert 0 < result["stall_seconds"] < result["step_seconds"]
    assert 0.2 * result["step_seconds"] < result["unmanaged_step_seconds"] < result["step_seconds"]
    # What does not fit has to leave and to come back, or to be made again.
    assert (result["swapped_out_bytes"] + result["recomputed_bytes"]
            >= result["unmanaged_peak_bytes"] - result["budget_bytes"])
    out, err = capsys.readouterr()
    assert out.startswith("device sim:p100 (auto: synthetic data")
    for text in ("77.3 GiB", "batch_norm_grad", "waiting for copies", "with unlimited memory", "try next"):
        assert text in out
    assert "3/3" in err and "loss -" in err and "stall" in err


def test_real_data_goes_to_the_cpu_and_the_hints_are_flags(capsys, tmp_path):
    result = result_of(tmp_path, *ON_DIGITS, "--steps", "3")
    assert (result["device"], result["batch"]) == ("cpu", DIGITS_BATCH)
    assert {key for key, value in result.items() if value is None} == NOT_OF_DIGITS
    assert 0 <= result["stall_seconds"] <= result["step_seconds"] and result["recompute_seconds"] == 0.0
    assert 0 <= result["accuracy"] <= 1 and 1 < result["loss"] < 4  # ln 10 = 2.3 before it has learnt
    out = capsys.readouterr().out
    assert out.startswith("device cpu (auto: real data") and "test accuracy" in out
    assert "--batch 48 fits this budget too" in out


def test_modelled_times_of_a_device_that_computes_are_not_told(tmp_path):
    result = result_of(tmp_path, *ON_DIGITS, "--steps", "3", "--device", "cpu:virtual")
    assert {key for key, value in result.items() if value is None} == {
        "recompute_seconds", "stall_seconds", "slid_seconds", "slower_seconds", "planning_seconds", "planning_share",
        "search_seconds"} | NOT_OF_DIGITS


def test_lenet_learns_the_digits(tmp_path):
    result = result_of(tmp_path, *ON_DIGITS, "--epochs", "4")
    assert result["accuracy"] > 0.95


def test_half_of_the_unmanaged_peak_gives_the_same_bits(tmp_path):
    from safetensors.numpy import load_file

    paths = [str(tmp_path / name) for name in ("free", "half")]
    for path, budget in zip(paths, ("16MiB", "50%"), strict=True):
        result = result_of(tmp_path, *ON_DIGITS, "--steps", "20", "--memory-budget", budget, "--save-weights", path)
        assert (result["swapped_out_bytes"] > 0) == (budget == "50%")
    free, half = map(load_file, paths)
    layers = ("C1", "C3", "C5", "F6", "output")
    assert set(free) == set(half) == {f"{layer}.{name}" for layer in layers for name in ("weight", "bias")}
    assert all(np.array_equal(free[name], half[name]) for name in free)
    assert not any(np.isnan(array).any() for array in free.values())


def test_the_same_seed_gives_the_same_parameters_and_another_does_not(tmp_path):
    files = []
    for seed in (1, 1, 2):
        path = tmp_path / f"{len(files)}.safetensors"
        assert train.main([*ON_DIGITS, "--steps", "3", "--seed", str(seed), "--save-weights", str(path)]) == 0
        files.append(path.read_bytes())
    assert files[0] == files[1] != files[2]


def test_the_seed_decides_the_first_parameters_and_the_order_of_the_images(tmp_path, monkeypatch):
    seeds = []
    batches = Digits.batches
    monkeypatch.setattr(Digits, "batches",
                        lambda data, size, *, seed, skip: seeds.append(seed) or batches(data, size, seed=seed))
    files = [tmp_path / name for name in "ab"]
    for seed, path in enumerate(files):  # with a learning rate of 0 the parameters stay what they were
        assert train.main([*ON_DIGITS, "--steps", "1", "--lr", "0", "--seed", str(seed),
                           "--save-weights", str(path)]) == 0
    assert files[0].read_bytes() != files[1].read_bytes()
    assert seeds == [0, 1]


def test_a_step_takes_the_median_of_the_later_half_of_the_steps():
    times = iter([0, 10, 19, 21, 25, 31])  # steps of 10 s, which warms up, of 9 s under no plan, and of 2, 4 and 6 s
    meter = Meter(Runtime("sim:p100"), 8, lambda: next(times))
    meter.add(0.0)
    assert meter.median(lambda step: step.seconds) == 10
    for _ in range(4):
        meter.add(0.0)
    assert meter.median(lambda step: step.seconds) == 4
    assert "1.33 images/s" in meter.bar_fields()  # the last step: 8 images in 6 s


def test_of_two_runs_on_the_cpu_only_those_keys_differ_that_the_manual_names(tmp_path):
    manual = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    said = manual.split("These keys of `--json` vary from run to run:")[1].split("\n\n## ")[0]
    flags = [*ON_DIGITS, "--device", "cpu", "--steps", "8", "--memory-budget", "60%", "--policy", "auto"]
    first, second = (result_of(tmp_path, *flags) for _ in range(2))
    differ = {key for key in first if first[key] != second[key]}
    assert "step_seconds" in differ and differ <= set(re.findall(r"`(\w+)`", said))


@pytest.mark.slow
def test_two_runs_on_a_simulator_agree_in_every_number(tmp_path):
    flags = ["--model", "resnet18", "--batch", "64", "--memory-budget", "1GiB", "--steps", "3"]
    assert result_of(tmp_path, *flags) == result_of(tmp_path, *flags)


def test_a_simulator_needs_no_numerics_to_be_installed():
    script = ("import sys, runpy; sys.argv = ['train.py', '--model', 'resnet18', '--steps', '1']\n"
              "try:\n    runpy.run_path('train.py', run_name='__main__')\n"
              "except SystemExit as end:\n    assert not end.code\n"
              "print([name for name in ('numba', 'scipy', 'sklearn', 'safetensors') if name in sys.modules])")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("flags", "states"), [
    (["--optimizer", "sgd"], 0), (["--opt", "sgd", "--momentum", "0.5"], 1), ([], 1), (["--opt", "adam"], 2),
])
def test_the_optimizer_and_its_state_are_those_asked_for(tmp_path, flags, states):
    # At batch 1 the update is lenet's largest operation: a parameter, its gradient and each state.
    result = result_of(tmp_path, "--model", "lenet", "--batch", "1", "--steps", "1", *flags)
    blocks = (2 + states) * 192_000  # the weight of its largest layer, [120, 400]: at the least one is updated alone
    assert result["largest_op"]["bytes"] == blocks


def test_the_flags_of_timm_and_torchvision_mean_the_same():
    ours = parse(["--batch", "8", "--optimizer", "sgd", "--weight-decay", "0.1", "--image-size", "96"])
    assert parse(["-b", "8", "--opt", "sgd", "--wd", "0.1", "--img-size", "96"]) == ours
    assert parse(["--batch-size", "8", "--opt", "sgd", "--wd", "0.1", "--img-size", "96"]) == ours


def test_batch_max_and_percentages_are_told_from_numbers():
    assert parse(["--batch", "max"]).batch is None
    assert parse(["--memory-budget", "12.5%"]).memory_budget == Share(0.125)
    assert parse(["--memory-budget", "1.5KiB"]).memory_budget == 1536
    assert (parse([]).batch, parse(["--data", "digits"]).batch) == (32, DIGITS_BATCH)


def test_help_explains_every_key_and_ends_well(capsys):
    assert train.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert not [key for key in KEYS if key not in out]


def test_a_loss_that_is_not_finite_becomes_null(tmp_path):
    result = Result("m", 1, "cpu", "passive", "tf32", 1, 1, 1, LargestOp("add", 1), 1.0, 1.0, 0, 0, 0, None, None, 0,
                    float("nan"), None)
    result.write(str(tmp_path / "r.json"))
    assert json.loads((tmp_path / "r.json").read_text())["loss"] is None
    with pytest.raises(UserError, match="cannot write"):
        result.write(str(tmp_path / "none" / "r.json"))


def test_the_summary_leaves_out_what_the_device_does_not_know():
    known = Result("m", 10, "sim:x", "passive", "tf32", 2**30, 2**29, 2**31, LargestOp("add", 2**20), 2.0, 5.0, 0, 0, 0,
                   0.5, 1.0, 0, None, None)
    text = summary(known, 1.0, ["this", "that"])
    assert "50% of the 10 images/s with unlimited memory" in text  # 10 images in 1 s instead of 2
    assert "1 s (50%) waiting for copies, 0.5 s (25%) recomputing" in text and "learnt" not in text
    assert len({line.index(word) for line, word in zip(text.splitlines()[-2:], ("this", "that"), strict=True)}) == 1
    unknown = Result("m", 10, "cpu", "passive", "tf32", 2**30, 2**29, 2**31, LargestOp("add", 2**20), 2.0, 5.0, 0, 0, 0,
                     None, None, 0, 0.25, 0.5)
    text = summary(unknown, None, [])
    assert "unlimited" not in text and "time lost" not in text and "loss 0.25, test accuracy 50.00%" in text


@pytest.mark.parametrize(("facts", "slices", "lost"), [
    ({}, 1, "1 s (50%) waiting for copies, 0 s (0%) recomputing, 0.2 s (10%) waiting for launches"),
    ({"slid_seconds": 0.12, "slower_seconds": 0.08}, 1,
     "1 s (50%) waiting for copies, 0 s (0%) recomputing, 0.12 s (6%) sliding, 0.08 s (4%) in slower algorithms"),
    ({}, 4, "1 s (50%) waiting for copies, 0 s (0%) recomputing, 0.2 s (10%) because of 4 slices"),
    ({"slid_seconds": 1e-9}, 4, "1 s (50%) waiting for copies, 0 s (0%) recomputing, 0.2 s (10%) because of 4 slices"),
    ({"ranks": (RankMemory(0, 1, 1, 0, 0, 0, 0, 1.0),)}, 1,
     "1 s (50%) waiting for exchanges, 0 s (0%) recomputing, 0.2 s (10%) waiting for launches"),
    ({"ranks": (RankMemory(0, 1, 1, 0, 9, 9, 0, 1.0),), "swapped_out_bytes": 9}, 1,
     "1 s (50%) waiting for copies and exchanges, 0 s (0%) recomputing, 0.2 s (10%) waiting for launches")])
def test_the_summary_names_what_time_was_lost_to(facts, slices, lost):
    known = Result("m", 10, "sim:x", "passive", "tf32", 2**30, 2**29, 2**31, LargestOp("add", 2**20), 2.0, 5.0, 0, 0, 0,
                   0.0, 1.0, 0, None, None)
    assert f"  time lost a step   {lost}\n" in summary(replace(known, **facts), 0.8, ["that"], slices=slices)


@pytest.mark.parametrize(("seconds", "told"), [(0.5, True), (0.0, False), (1e-15, False), (None, False)])
def test_the_summary_tells_of_a_search_that_took_time(seconds, told):
    result = Result("m", 10, "sim:x", "auto", "tf32", 2**30, 2**29, 2**31, LargestOp("add", 2**20), 2.0, 5.0, 0, 0, 0,
                    0.0, 0.0, 0, None, None, search_seconds=seconds)
    assert ("to find this       0.5 s: the first half of the steps took longer" in summary(result, 2.0, [])) == told
    assert ("to find this" in summary(result, 2.0, [])) == told


def test_the_summary_tells_of_the_top_five_only_where_there_are_more_classes():
    result = Result("m", 10, "cpu", "none", "tf32", 2**30, 2**29, 2**31, LargestOp("add", 2**20), 2.0, 5.0, 0, 0, 0,
                    None, None, 0, 0.25, 0.5, 1.0)
    assert "among the top five 100.00%" in summary(result, None, [], classes=6)
    assert "top five" not in summary(result, None, [], classes=5)
    assert "test accuracy 50.00%" in summary(result, None, [], classes=2)


def test_rates_have_three_figures_and_shares_are_in_percent():
    assert [rate(n, 1.0) for n in (0.1234, 12.34, 123.4, 12345)] == ["0.123", "12.3", "123", "12345"]
    assert (rate(1, 0.0), share(1, 4), share(1, 0)) == ("0", "25%", "0%")


@pytest.mark.slow
def test_a_network_for_text_trains_on_sequences(tmp_path):
    on_gpu = result_of(tmp_path, "--model", "bert-base", "--batch", "64", "--steps", "2")
    assert (on_gpu["device"], on_gpu["batch"], on_gpu["loss"]) == ("sim:p100", 64, None)
    here = result_of(tmp_path, "--model", "bert-tiny", "--batch", "2", "--steps", "2", "--device", "cpu")
    assert 5 < here["loss"] < 20  # about ln 30,522 = 10.3 for a word and ln 2 for the order


@pytest.mark.parametrize("flags", [["--data", "digits"], ["--image-size", "32"], ["--num-classes", "3"]])
def test_what_is_for_images_is_refused_for_text(capsys, flags):
    assert train.main(["--model", "bert-tiny", *flags]) == 2
    assert "bert-tiny reads text" in capsys.readouterr().err


# Host memory on a disk ----------------------------------------------------------------------------------------------
def test_a_run_whose_host_memory_is_on_a_disk_ends_as_one_with_enough_of_it_and_leaves_no_file(capsys, tmp_path):
    flags = [*LENET, "--slices", "1", "--policy", "passive", "--memory-budget", "4MiB", "--steps", "3", "--json"]
    on_disk = ["--host-memory", "0", "--spill", str(tmp_path), "--spill-bytes", "64MiB"]
    results = []
    for n, more in enumerate(([], on_disk)):
        path = tmp_path / f"{n}.json"
        assert train.main([*flags, str(path), *more]) == 0
        results.append(json.loads(path.read_text()))
        path.unlink()
    capsys.readouterr()
    assert results[0]["loss"] == results[1]["loss"] and results[1]["swapped_out_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_spill_without_a_size_or_a_folder_is_refused(capsys, tmp_path):
    for half in (["--spill", str(tmp_path)], ["--spill-bytes", "1GiB"]):
        assert "--spill DIR and --spill-bytes N go together" in refused(capsys, *LENET, *half)
    gone = str(tmp_path / "gone")
    message = refused(capsys, *LENET, "--device", "cpu:virtual", "--spill", gone, "--spill-bytes", "1MiB")
    assert "cannot spill to" in message and "No such file or directory" in message
