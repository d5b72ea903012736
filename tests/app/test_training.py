"""Schedules, clipping, accumulation, smoothing, groups, scores and the watch for NaN: the numbers, and the same bits
under memory management."""

import json
from itertools import islice
from math import inf, nan, pi, sqrt

import killed
import numpy as np
import pytest

import train
from minidl import Runtime, no_grad
from minidl.data import Batch, Digits, Synthetic
from minidl.errors import UserError
from minidl.models import bert, unet
from minidl.models.text import Text
from minidl.nn import Linear, Module, Sequential
from minidl.ops import cross_entropy, log, relu
from minidl.optim import SGD, Adam, AdamW, Schedule, clip_global_norm
from minidl.runtime import parameter
from minidl.training import Trainer, detect_anomaly
from minidl.training.anomaly import Anomaly
from minidl.training.metrics import Accuracy, dice, ranks

RANDOM = np.random.default_rng(3)


@pytest.fixture
def runtime():
    with Runtime("cpu:virtual", memory_budget="64MiB", host_memory="64MiB", policy="none") as made:
        yield made


# Learning rates ------------------------------------------------------------------------------------------------------
def test_a_warm_up_grows_by_equal_steps_to_the_peak():
    assert [Schedule(1.0, warmup_steps=3)(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(("shape", "rates"), [
    ("constant", [1.0, 1.0, 1.0, 1.0]),
    ("linear", [1.0, 0.75, 0.5, 0.25]),
    ("cosine", [1.0, (1 + sqrt(0.5)) / 2, 0.5, (1 - sqrt(0.5)) / 2]),  # cos of 0, 45, 90 and 135 degrees
    ("step", [1.0, 1.0, 0.1, 0.1]),
])
def test_after_two_steps_of_warm_up_four_follow_their_shape(shape, rates):
    schedule = Schedule(1.0, shape, warmup_steps=2, total_steps=6, every=2, rate=0.1)
    assert [schedule(step) for step in range(2, 6)] == pytest.approx(rates, abs=1e-15)
    assert [schedule(step) for step in range(2)] == [1 / 3, 2 / 3]


def test_schedules_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    for ours, theirs in ((Schedule(0.3, "cosine", 0, 10), torch.optim.lr_scheduler.CosineAnnealingLR),
                         (Schedule(0.3, "step", every=4, rate=0.5), None)):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        scheduler = theirs(optimizer, 10) if theirs else torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        for step in range(10):
            assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
            optimizer.step()
            scheduler.step()


@pytest.mark.parametrize(("arguments", "message"), [
    ((1.0, "triangle"), "there is no schedule 'triangle'; there are constant, linear, cosine, step"),
    ((1.0, "cosine", 5, 5), "a cosine schedule of 5 steps leaves none after 5 of warm-up"),
    ((1.0, "linear"), "a linear schedule of None steps"),
    ((1.0, "step", 0, None, 0), "decay every 0"),
    ((1.0, "constant", -1), "-1 steps of warm-up"),
])
def test_a_schedule_without_steps_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Schedule(*arguments)


# Clipping ------------------------------------------------------------------------------------------------------------
def with_gradients(arrays):
    parameters = []
    for array in arrays:
        parameters.append(p := parameter(array.shape))
        p.fill_(1.0)
        (p * current(array)).sum().backward()
    return parameters


def current(array):
    from minidl import current_runtime
    return current_runtime().tensor(array)


SHAPES = [(3,), (4, 5), (2, 3, 2), ()]


def test_gradients_above_the_limit_get_its_norm_together(runtime):
    arrays = [RANDOM.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    norm = sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays))
    parameters = with_gradients(arrays)
    clip_global_norm(parameters, 0.5)
    for p, array in zip(parameters, arrays, strict=True):
        # The factor and the product are rounded once each, and the norm's last operations: a few parts in 2^24.
        np.testing.assert_allclose(p.grad.numpy(), array * (0.5 / norm), rtol=5e-7)


def test_gradients_within_the_limit_keep_every_bit(runtime):
    arrays = [RANDOM.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    parameters = with_gradients(arrays)
    for limit in (100.0, 0.1 + sqrt(sum(float((a ** 2).sum()) for a in arrays))):
        clip_global_norm(parameters, limit)
        assert all(np.array_equal(p.grad.numpy(), a) for p, a in zip(parameters, arrays, strict=True))


def test_clipping_takes_no_memory_for_a_second_set_of_gradients(runtime):
    parameters = with_gradients([np.ones((256, 256), np.float32) for _ in range(8)])  # 256 KiB each
    before = runtime.stats().used_bytes
    runtime.memory.arena.reset_peak()
    clip_global_norm(parameters, 0.5)
    assert runtime.stats().used_bytes == before
    assert runtime.stats().peak_bytes <= before + 256 * 2**10 + 4096  # one square, and scalars


def test_parameters_without_gradients_are_left_alone_and_a_limit_of_nothing_is_refused(runtime):
    parameters = [*with_gradients([np.full(4, 3.0, np.float32)]), parameter((2,))]
    clip_global_norm(parameters, 3.0)
    assert parameters[0].grad.numpy().tolist() == [1.5] * 4 and parameters[1].grad is None
    clip_global_norm(parameters[1:], 3.0)
    for limit in (0.0, -1.0, nan):
        with pytest.raises(UserError, match="clipped to a norm of"):
            clip_global_norm(parameters, limit)


# Accumulation --------------------------------------------------------------------------------------------------------
class Net(Module):
    def __init__(self):
        self.layers = Sequential(Linear(64, 32), Linear(32, 10))

    def forward(self, x):
        return self.layers(x.reshape((x.shape[0], 64)))


def trainer_of(runtime, *, accumulate=1, smoothing=0.0, network=Net, **options):
    model = network()

    def loss(batch):
        images, labels = batch.upload(runtime)
        return cross_entropy(model(images), labels, label_smoothing=smoothing)
    return Trainer(model, SGD(model.parameters(), lr=0.1, momentum=0.9), loss, Schedule(0.1), accumulate=accumulate,
                   **options)


def trained(policy, budget, *, steps=6, **options):
    """Losses, parameters and optimizer state after some steps on digits; and the bytes that were moved."""
    with Runtime("cpu:virtual", memory_budget=budget, host_memory="64MiB", policy=policy, seed=1,
                 poisoned=True) as runtime:
        trainer = trainer_of(runtime, **options)
        losses = [trainer.step(batch) for batch in islice(Digits(8).batches(64), steps)]
        stats = runtime.stats()
        state = trainer.model.state_dict() | trainer.optimizer.state_dict()
        return losses, state, stats.swapped_out_bytes + stats.recomputed_bytes, stats.peak_bytes


def test_four_parts_give_the_gradients_of_the_whole_batch():
    whole, parts = trained("none", "8MiB"), trained("none", "8MiB", accumulate=4)
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)  # other sums of the same float32 numbers
    for name, value in whole[1].items():
        np.testing.assert_allclose(parts[1][name], value, rtol=1e-3, atol=1e-6)


def test_four_parts_take_the_activations_of_one():
    def peak(accumulate):
        with Runtime("sim:p100", memory_budget="1GiB", policy="none") as runtime:
            trainer = trainer_of(runtime, accumulate=accumulate, network=lambda: killed.network())
            for _ in range(2):
                trainer.step(Batch(400, (1, 8, 8)))
            return runtime.stats().peak_bytes
    # 400 images have four times the activations of 100; parameters and momentum are 11 KiB.
    assert peak(4) < 0.3 * peak(1)


@pytest.mark.parametrize(("policy", "budget"), [("passive", "750KiB"), ("recompute", "750KiB"), ("capuchin", "750KiB")])
@pytest.mark.parametrize("options", [{"accumulate": 2}, {"clip_norm": 0.3}, {"smoothing": 0.1},
                                     {"accumulate": 2, "clip_norm": 0.3, "smoothing": 0.1}])
def test_accumulation_clipping_and_smoothing_give_the_same_bits_under_memory_management(policy, budget, options):
    options = options | {"network": killed.network}
    scale = options.get("accumulate", 1)
    free = trained("none", "16MiB", **options)
    tight = trained(policy, free[3] * 6 // 10 // 256 * 256, **options)
    assert tight[2] > 0 and free[2] == 0, f"nothing had to leave with {scale} parts"
    assert tight[0] == free[0]
    assert all(tight[1][name].tobytes() == free[1][name].tobytes() for name in free[1])


def test_a_batch_is_cut_into_equal_parts_in_order():
    batch = next(Digits(8).batches(6))
    parts = batch.split(3)
    assert [part.size for part in parts] == [2, 2, 2]
    assert np.array_equal(np.concatenate([part.images for part in parts]), batch.images)
    assert np.array_equal(np.concatenate([part.labels for part in parts]), batch.labels)
    assert [(part.images, part.labels) for part in Batch(4, (1, 8, 8)).split(2)] == [(None, None)] * 2


def test_data_skips_to_any_step():
    digits = Digits(8)
    batches = list(islice(digits.batches(300, seed=4), 11))  # 4 an epoch
    for skip in (0, 1, 3, 4, 5, 10):
        batch = next(digits.batches(300, seed=4, skip=skip))
        assert np.array_equal(batch.images, batches[skip].images) and np.array_equal(batch.labels, batches[skip].labels)
    noise = Synthetic((1, 8, 8), 10)
    assert np.array_equal(next(noise.batches(2, skip=5)).images, next(noise.batches(2)).images)


def test_the_dry_run_of_a_step_leaves_the_count_of_steps(runtime):
    trainer = trainer_of(runtime)
    trainer.step(next(Digits(8).batches(8)))
    runtime.dry_run(lambda: trainer.step(Batch(8, (1, 8, 8))))
    assert trainer.steps_done == 1


# Smoothing and groups ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_is_the_cross_entropy_with_softened_targets(runtime, smoothing):
    logits, labels = RANDOM.standard_normal((6, 5)) * 3, np.array([0, 4, 2, 2, 1, 3])
    p = parameter((6, 5), dtype=killed_dtype("float64"))
    p.copy_(runtime.tensor(logits))
    loss = cross_entropy(p, runtime.tensor(labels), label_smoothing=smoothing)
    loss.backward()
    soft = np.exp(logits - logits.max(1, keepdims=True))
    soft /= soft.sum(1, keepdims=True)
    target = np.full((6, 5), smoothing / 5) + (1 - smoothing) * np.eye(5)[labels]
    assert loss.item() == pytest.approx(-(target * np.log(soft)).sum(1).mean(), rel=1e-12)
    np.testing.assert_allclose(p.grad.numpy(), (soft - target) / 6, rtol=1e-10, atol=1e-14)


def killed_dtype(name):
    from minidl.meta import DTYPES
    return DTYPES[name]


def test_weight_decay_is_for_the_parameters_that_are_chosen(runtime):
    for kind in (SGD, AdamW):
        parameters = with_gradients([np.zeros((2, 2), np.float32), np.zeros(2, np.float32)])
        optimizer = kind(parameters, lr=0.5, weight_decay=0.5, decays=lambda p: p.ndim > 1)
        optimizer.step()
        assert parameters[0].numpy().ravel().tolist() == [0.75] * 4  # 1 - 0.5 * 0.5
        assert parameters[1].numpy().tolist() == [1.0] * 2


# Scores --------------------------------------------------------------------------------------------------------------
def test_top_1_is_argmax_and_top_5_is_a_sort():
    logits, labels = RANDOM.integers(0, 6, (500, 9)).astype(np.float32), RANDOM.integers(0, 9, 500)  # with many ties
    order = np.argsort(-logits, axis=1, kind="stable")
    score = Accuracy.of(logits, labels)
    assert score.count == 500
    assert score.top1 == (logits.argmax(1) == labels).mean()
    assert score.top5 == (order[:, :5] == labels[:, None]).any(1).mean()
    halves = Accuracy.of(logits[:200], labels[:200]) + Accuracy.of(logits[200:], labels[200:])
    assert halves == score


def test_a_label_whose_score_is_nan_is_not_recognised():
    logits = np.array([[nan, 0, 1], [0, nan, 1], [-inf, 0, nan]])
    assert ranks(logits, np.array([0, 2, 0])).tolist() == [3, 1, 2]


def test_masked_words_that_are_to_be_ignored_do_not_count():
    logits = np.eye(4)[[0, 1, 2, 3]]
    assert Accuracy.of(logits, np.array([0, -100, 3, -100])) == Accuracy(count=2, right=1, among_five=2)


def test_dice_is_the_mean_over_the_classes_that_are_there():
    truth = np.array([[0, 0, 1], [1, 1, 3]])
    found = np.array([[0, 1, 1], [1, 0, 0]])
    # class 0: 1 of 2 and 3 -> 2/5; class 1: 2 of 3 and 3 -> 4/6; class 2 is in neither; class 3: 0 of 1 and 0
    assert dice(found, truth, 4) == pytest.approx((2 / 5 + 4 / 6 + 0) / 3)
    assert dice(truth, truth, 4) == 1.0
    assert np.isnan(dice(truth[:0], truth[:0], 4))


def test_bert_learns_the_masked_words_of_one_batch_by_heart(runtime):
    text = Text(length=8, predictions=2, vocabulary=20)
    model = bert.BertForPreTraining(bert.BertConfig(1, 16, 2, vocab_size=20, hidden_dropout_prob=0.0,
                                                    attention_probs_dropout_prob=0.0))
    optimizer, scores = Adam(model.parameters(), lr=0.02), []
    for step in range(40):
        with runtime.iteration():
            batch = bert.synthetic_batch(runtime, 4, text)
            if step in (0, 39):
                with no_grad():
                    words = model.masked_words(*batch[:4])[0].numpy()
                scores.append(Accuracy.of(words, batch.masked_labels.numpy().ravel()))
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()
    assert scores[0].count == 4 * 2 and scores[0].top1 < 0.5  # 20 words to choose from
    assert scores[1].top1 == 1.0


def test_unet_learns_the_outline_of_a_disc_by_heart(runtime):
    images = np.random.default_rng(0).standard_normal((2, 1, 32, 32)).astype(np.float32)  # whatever ran before
    rows, columns = np.mgrid[:32, :32]
    truth = np.stack([(rows - 12) ** 2 + (columns - 12) ** 2 < 50, (rows - 20) ** 2 + (columns - 16) ** 2 < 90])
    images += truth[:, None]
    model = unet.UNet(in_channels=1, width=4)
    optimizer, scores = Adam(model.parameters(), lr=0.01), []
    for step in range(16):
        with runtime.iteration():
            x, labels = runtime.tensor(images), runtime.tensor(truth.astype(np.int64))
            if step in (0, 15):
                with no_grad():
                    scores.append(dice(model(x).numpy().argmax(axis=1), truth.astype(np.int64), 2))
            optimizer.zero_grad()
            unet.loss(model, x, labels).backward()
            optimizer.step()
    assert scores[0] < 0.8 and scores[1] > 0.95


def test_evaluation_changes_no_bit_of_the_training(runtime):
    digits, results = Digits(8), []
    for watch in (False, True):
        with Runtime("cpu:virtual", memory_budget="64MiB", host_memory="64MiB", policy="none") as other:
            trainer = trainer_of(other, network=killed.network)
            for batch in islice(digits.batches(64), 4):
                trainer.step(batch)
                if watch:
                    assert trainer.evaluate(digits.test_batches(100)).count == 359
            results.append(trainer.model.state_dict())
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


# NaN -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["cpu:virtual", "cpu:threads"])
def test_the_first_operation_that_makes_nan_is_named_with_its_inputs(device):
    with Runtime(device, memory_budget="8MiB", host_memory="8MiB", policy="none") as runtime, detect_anomaly():
        x = runtime.tensor(np.array([1.0, -2.0, 3.0], np.float32))
        relu(x)
        with pytest.raises(Anomaly, match=r"log made NaN: 1 of the 3 values of float32\[3\]; it was operation 3 of its "
                                          r"iteration; its inputs: float32\[3\] from -2 to 3") as found:
            log(x)
        assert found.value.op == "log"


def test_an_operation_that_writes_in_place_is_watched_too(runtime):
    p = parameter((2,))
    p.fill_(inf)
    with no_grad():
        with detect_anomaly(), pytest.raises(Anomaly, match="add_ made NaN: 2 of the 2"):
            p.add_(runtime.tensor(np.full(2, -inf, np.float32)))
        p.add_(runtime.tensor(np.full(2, -inf, np.float32)))  # it is not watched any more


def test_watching_changes_no_bit_and_moves_nothing():
    plain = trained("recompute", "750KiB", network=killed.network)
    with Runtime("cpu:virtual", memory_budget="750KiB", host_memory="64MiB", policy="recompute", seed=1,
                 poisoned=True) as runtime:
        trainer = trainer_of(runtime, network=killed.network)
        with detect_anomaly():
            losses = [trainer.step(batch) for batch in islice(Digits(8).batches(64), 6)]
        stats = runtime.stats()
        assert losses == plain[0] and stats.swapped_out_bytes + stats.recomputed_bytes == plain[2]


def test_a_simulator_has_nothing_to_look_at():
    with Runtime("sim:p100", memory_budget="64MiB", policy="none") as runtime, detect_anomaly(), no_grad():
        relu(runtime.tensor(None, shape=(3,)))


# train.py ------------------------------------------------------------------------------------------------------------
ON_DIGITS = ["--model", "killed:network", "--data", "digits", "--image-size", "8", "--batch", "100", "--steps", "4",
             "--memory-budget", "8MiB", "--host-memory", "8MiB", "--device", "cpu:virtual", "--policy", "none"]


def refused(capsys, *flags):
    assert train.main([*ON_DIGITS, *flags]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_loss_that_is_no_number_ends_the_run_and_the_operation_is_found(capsys):
    assert "the loss is nan at step" in refused(capsys, "--lr", "1e30", "--steps", "20")
    assert "made NaN" in refused(capsys, "--lr", "1e30", "--steps", "20", "--detect-anomaly")


@pytest.mark.parametrize("flags", [
    ["--schedule", "linear", "--warmup-steps", "1"], ["--clip-grad", "0.1"], ["--grad-accum-steps", "2"],
    ["--label-smoothing", "0.2"], ["--decay", "matrices", "--weight-decay", "0.5"],
    ["--decay-steps", "2", "--schedule", "step"],
])
def test_every_flag_of_the_training_changes_it(tmp_path, flags):
    losses = []
    for number, more in enumerate(([], flags)):
        assert train.main([*ON_DIGITS, "--run-dir", str(tmp_path / str(number)), *more]) == 0
        lines = (tmp_path / str(number) / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert len(losses[0]) == len(losses[1]) == 4 and losses[0][-1] != losses[1][-1]


def test_with_accumulation_a_step_takes_as_many_batches_and_the_rates_count_them(tmp_path):
    flags = [*ON_DIGITS, "--batch", "50", "--grad-accum-steps", "7", "--epochs", "1"]
    flags = [word for word in flags if word not in ("--steps", "4")]
    assert train.main([*flags, "--run-dir", str(tmp_path / "run"), "--json", str(tmp_path / "json")]) == 0
    result = json.loads((tmp_path / "json").read_text())
    assert result["batch"] == 50
    assert result["items_per_second"] == pytest.approx(350 / result["step_seconds"])
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4  # 1438 // 350


@pytest.mark.parametrize(("flags", "message"), [
    (["--clip-grad", "0"], "--clip-grad/--clip-grad-norm: must be a number above 0, not 0"),
    (["--label-smoothing", "1"], "must be a number of at least 0 and below 1, not 1"),
    (["--grad-accum-steps", "15"], "there are only 95 images to train on"),  # 1438 // 15
    (["--schedule", "cosine", "--warmup-steps", "4"], "a cosine schedule of 4 steps leaves none after 4 of warm-up"),
    (["--model", "inception_v3_aux", "--data", "synthetic", "--image-size", "299", "--label-smoothing", "0.1"],
     "--label-smoothing is for networks with one label an image, not for inception_v3_aux"),
    (["--schedule", "sine"], "invalid choice: 'sine'"),
])
def test_a_training_that_cannot_be_is_refused(capsys, flags, message):
    assert message in refused(capsys, *flags)


def test_a_batch_that_is_as_large_as_fits_counts_its_parts(capsys):
    words = ["--model", "lenet", "--memory-budget", "3MiB", "--steps", "1", "--batch", "max", "--slices", "1"]
    batches = []
    for parts in ("1", "4"):
        assert train.main([*words, "--grad-accum-steps", parts]) == 0
        batches.append(int(capsys.readouterr().out.split("the largest batch is ")[1].split(":")[0]))
    assert 0.9 * batches[0] <= batches[1] <= batches[0]


def test_the_cosine_passes_through_half_of_its_peak():
    assert Schedule(1.0, "cosine", 0, 2)(1) == pytest.approx(0.5) and pi > 3
