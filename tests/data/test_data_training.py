"""train.py on data of one's own: it goes on where it was, keeps within the host budget, and says what was wrong."""

import json
import re
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import made_data
import pytest

import train
from minidl.cli.app import train as program
from minidl.cli.app.flags import parse
from minidl.cli.app.session import fixed_arguments
from minidl.data import Feed
from minidl.report.meter import Meter
from minidl.report.result import LargestOp, Result
from minidl.report.summary import summary
from minidl.runtime import Runtime

ROOT = Path(__file__).parents[2]
MEMORY = ["--memory-budget", "32MiB", "--host-memory", "32MiB"]
NETWORKS = {
    "class_folders": ["--model", "mlp", "--image-size", "16", "--batch", "6"],
    "masks": ["--model", "unet-small", "--image-size", "16", "--batch", "5"],
    "text": ["--model", "bert-tiny", "--sequence-length", "16", "--batch", "4", "--vocab-size", "120"],
    "running_text": ["--model", "llama-tiny", "--sequence-length", "48", "--batch", "50", "--vocab-size", "120"],
}
KEYS = {"class_folders": {"accuracy", "accuracy_top5"}, "masks": {"dice"},
        "running_text": {"next_token_loss"},
        "text": {"masked_lm_loss", "masked_lm_accuracy", "next_sentence_accuracy"}}
SCORES = set.union(*KEYS.values())


def run(*flags):
    assert train.main([*map(str, flags), *MEMORY]) == 0


def refused(capsys, *flags):
    assert train.main([*map(str, flags)]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("train.py: error: ")


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_run_that_was_stopped_in_an_epoch_ends_with_the_bytes_of_one_that_was_not(tmp_path, kind):
    root = getattr(made_data, kind)(tmp_path / "data")
    flags, steps = [*NETWORKS[kind], "--data", root], 4 if kind == "masks" else 8  # the latter in a second epoch
    run(*flags, "--steps", steps, "--save-weights", tmp_path / "whole", "--json", tmp_path / "json", "--workers", 3)
    run(*flags, "--steps", 2, "--run-dir", tmp_path / "run", "--workers", 1)
    assert train.main(["--resume", str(tmp_path / "run"), "--steps", str(steps), "--save-weights",
                       str(tmp_path / "parts")]) == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()
    result = json.loads((tmp_path / "json").read_text())
    assert {key for key in SCORES if result[key] is not None} == KEYS[kind]
    assert result["examples_per_second"] > 0 and 0 <= result["data_seconds"] < result["step_seconds"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    named = {"accuracy": "top1", "accuracy_top5": "top5"}
    assert {named.get(key, key): result[key] for key in KEYS[kind]}.items() <= rows[-1].items()


@pytest.mark.parametrize("flags", [["--data", "x"], ["--vocab", "v"], ["--vocab-size", "9"], ["--sequence-length", "9"],
                                   ["--on-bad-file", "skip"], ["--attention", "fused"]])
def test_what_decides_the_batches_cannot_change_when_a_run_goes_on_and_the_threads_can(flags):
    first = fixed_arguments(parse([]), 8, 3)
    assert fixed_arguments(parse(flags), 8, 3) != first
    assert fixed_arguments(parse(["--workers", "7", "--token-file", "elsewhere"]), 8, 3) == first


def test_broken_files_are_left_out_counted_and_named(tmp_path, capsys):
    root = made_data.class_folders(tmp_path / "data")
    for path in sorted(root.rglob("*.png"))[:3]:
        path.write_bytes(b"no image")
    flags = [*NETWORKS["class_folders"], "--data", root, "--epochs", 1]
    assert re.search(r"class \d/\d\d\d.png: not an image in one of the formats", refused(capsys, *flags, *MEMORY))
    run(*flags, "--on-bad-file", "skip", "--json", tmp_path / "json")
    assert json.loads((tmp_path / "json").read_text())["skipped_files"] == 3
    assert len(re.findall(r"left out: .*class \d/\d\d\d.png: not an image", capsys.readouterr().out)) == 3


def test_batches_ahead_and_swapped_tensors_share_the_host_budget(tmp_path, monkeypatch):
    capacities, feeds = [], []

    class Watched(Runtime):
        def __init__(self, *arguments, host_memory, **others):
            capacities.append(host_memory)
            super().__init__(*arguments, host_memory=host_memory, **others)

    monkeypatch.setattr(program, "Runtime", Watched)
    batches = Feed.run
    monkeypatch.setattr(Feed, "run", lambda feed, jobs: feeds.append(feed) or batches(feed, jobs))
    root = made_data.class_folders(tmp_path)
    batch = 6 * (16 * 16 * 4 + 8)  # bytes: mlp takes grey images
    for host, ahead in ((2 * 4 * batch, 2), (4 * batch - 4, 0), (100 * batch, 4)):
        assert train.main([*NETWORKS["class_folders"], "--data", str(root), "--steps", "4", "--memory-budget", "32MiB",
                           "--host-memory", str(host)]) == 0
        assert capacities[-1] == host - ahead * batch
        assert feeds[-2].ahead == ahead and feeds[-2].peak_bytes == ahead * batch


def test_the_bar_says_when_data_is_the_bottleneck_and_not_otherwise():
    feed, clock = Feed(1, 0), count(0, 10)
    meter = Meter(Runtime("sim:p100"), 8, lambda: next(clock), feed)
    feed.waited_seconds += 0.9
    assert meter.add(1.0).data_seconds == pytest.approx(0.9) and "bottleneck" not in meter.bar_fields()
    feed.waited_seconds += 2
    meter.add(1.0)
    assert meter.bar_fields().endswith("data is the bottleneck: waits 20%")
    feed.waited_seconds += 5
    meter.restart()  # a pass over test data
    assert meter.add(1.0).data_seconds == 0


def test_the_summary_tells_what_the_threads_make_beside_what_the_steps_take():
    known = Result("m", 10, "cpu", "passive", "tf32", 1, 1, 1, LargestOp("add", 1), 2.0, 5.0, 0, 0, 0, None, None, 0,
                   None, None, data_seconds=1.5, examples_per_second=40.0)
    text = summary(known, None, [])  # of 10 images in 2 s: without the wait it would be 10 in half a second
    assert "threads can make 40 examples/s, the steps need 20; a step waits 1.5 s (75%): data is" in text
    assert "bottleneck" not in summary(replace(known, data_seconds=0.1), None, [])
    assert "data  " not in summary(replace(known, examples_per_second=None), None, [])


@pytest.mark.parametrize(("flags", "message"), [
    (["--data", "/nowhere"], "--data /nowhere: there is no such file or folder, and no data set of that name"),
    (["--data", "{text}"], "it has no folders of images, one per class"),
    (["--data", "{text}/0.txt"], "0.txt: this network reads images: a folder of classes"),
    (["--model", "bert-tiny", "--data", "{class_folders}"], "this network reads text, but there is no file *.txt here"),
    (["--model", "bert-tiny", "--data", "shapes"], "bert-tiny reads text: --data shapes"),
    (["--model", "llama-tiny", "--data", "text:{text}", "--sequence-length", "9000"], "tokens has no two sequences of"),
    (["--model", "llama-tiny", "--data", "text:/nowhere"], "--data /nowhere: there is no such file or folder"),
    (["--model", "unet", "--data", "{class_folders}"], "this network labels pixels: it needs images/ and masks/"),
    (["--model", "resnet18", "--data", "shapes"], "resnet18 gives one class an image: the shapes"),
    (["--model", "unet", "--data", "shapes", "--image-size", "8"], "--image-size must be at least 16 for shapes"),
    (["--model", "unet", "--data", "shapes", "--num-classes", "7"], "--num-classes 7: the shapes have 3 classes"),
    (["--model", "mlp", "--vocab-size", "9"], "--vocab-size is for text, and mlp reads images"),
    (["--model", "bert-tiny", "--vocab", "a", "--vocab-size", "9"], "--vocab-size is for a vocabulary that is trained"),
    (["--model", "bert-tiny", "--data", "{text}", "--vocab", "/nowhere"], "cannot read /nowhere: No such file"),
    (["--model", "bert-tiny", "--sequence-length", "600"], "bert has 512 positions, but a sequence has 600 tokens"),
    (["--on-bad-file", "ignore"], "--on-bad-file: invalid choice: 'ignore'"),
    (["--workers", "0"], "--workers/-j: must be a whole number of at least 1, not 0"),
    (["--model", "mlp", "--data", "{class_folders}", "--batch", "40"], "there are only 38 images to train on"),
])
def test_what_cannot_be_read_is_refused_with_one_message(capsys, tmp_path, flags, message):
    roots = {kind: tmp_path / kind for kind in ("text", "class_folders")}
    for kind, root in roots.items():
        getattr(made_data, kind)(root)
    assert message in refused(capsys, *(flag.format(**roots) for flag in flags))


@pytest.mark.parametrize(("module", "flags", "extra"), [
    ("PIL", ["--model", "mlp", "--data", "{class_folders}"], "data"),
    ("tokenizers", ["--model", "bert-tiny", "--data", "{text}"], "text"),
    ("pyarrow.parquet", ["--model", "mlp", "--data", "{parquet}"], "parquet"),
])
def test_a_package_that_is_missing_is_named_with_its_extra(capsys, tmp_path, monkeypatch, module, flags, extra):
    from minidl.data.pixels import _pillow

    roots = {kind: getattr(made_data, kind)(tmp_path / kind) for kind in ("class_folders", "text", "parquet")}
    monkeypatch.setitem(sys.modules, module, None)
    _pillow.cache_clear()
    try:
        message = refused(capsys, *(flag.format(**roots) for flag in flags), "--batch", "6", *MEMORY)
    finally:
        _pillow.cache_clear()
    assert f'pip install "minidl[{extra}]"' in message


@pytest.mark.full
def test_a_small_bert_on_the_shipped_text_beats_its_unigram_entropy_in_half_of_its_memory(tmp_path):
    text = tmp_path / "stories.txt"
    text.write_bytes((ROOT / "tests" / "support" / "text" / "stories.txt").read_bytes())
    assert train.main(["--model", "bert-tiny", "--data", str(text), "--vocab-size", "2000", "--epochs", "6",
                       "--warmup-steps", "50", "--schedule", "linear", "--memory-budget", "50%", "--json",
                       str(tmp_path / "json")]) == 0
    data = made_data.opened("text", text, vocab_size=2000, length=128, predictions=20)
    result = json.loads((tmp_path / "json").read_text())
    assert result["masked_lm_loss"] < data.unigram_entropy - 0.3 and result["next_sentence_accuracy"] > 0.6


@pytest.mark.full
def test_a_small_unet_on_generated_shapes_reaches_a_dice_of_95_percent_in_half_of_its_memory(tmp_path):
    assert train.main(["--model", "unet-small", "--data", "shapes", "--batch", "8", "--epochs", "6", "--optimizer",
                       "adam", "--schedule", "cosine", "--memory-budget", "50%", "--json", str(tmp_path / "json")]) == 0
    assert json.loads((tmp_path / "json").read_text())["dice"] >= 0.95


@pytest.mark.full
def test_a_small_resnet_on_digits_reaches_98_percent_in_half_of_its_memory(tmp_path):
    assert train.main(["--model", "resnet20", "--data", "digits", "--batch", "64", "--epochs", "12", "--lr", "0.1",
                       "--schedule", "cosine", "--memory-budget", "50%", "--json", str(tmp_path / "json")]) == 0
    assert json.loads((tmp_path / "json").read_text())["accuracy"] >= 0.98


@pytest.mark.full
def test_a_small_resnet_learns_digits_in_four_slices_as_well_as_whole(tmp_path):
    """359 digits are tested, so two accuracies of the same network differ by chance: that of 97% has a standard
    deviation of sqrt(0.97 x 0.03 / 359) = 0.9 points, a difference of two 1.3, and three of these are 3.8."""
    accuracies = {}
    for slices in ("1", "4"):
        path = tmp_path / slices
        assert train.main(["--model", "resnet20", "--data", "digits", "--image-size", "16", "--batch", "64", "--epochs",
                           "4", "--lr", "0.1", "--schedule", "cosine", "--memory-budget", "1GiB", "--slices", slices,
                           "--json", str(path)]) == 0
        accuracies[slices] = json.loads(path.read_text())["accuracy"]
    assert min(accuracies.values()) > 0.95 and abs(accuracies["1"] - accuracies["4"]) < 0.038
