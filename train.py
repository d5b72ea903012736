"""Train a network in as much memory as you allow it: model, device, budget, policy, loop, report.

    python train.py --model resnet50 --batch 1014
    python train.py --model lenet --data digits --memory-budget 50%

What fits is known before the first step, from twins that have shapes only (``minidl.app.fit``); what does not is
refused with the numbers that would do. Exit code 2 means that something asked for cannot be done. See docs/train.md.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from tqdm import tqdm

import models
from minidl import Runtime, current_runtime
from minidl import device as devices
from minidl.app.advice import advice
from minidl.app.files import check_writable, save
from minidl.app.fit import Setup, default_memory
from minidl.app.flags import EPOCHS, SYNTHETIC_STEPS, Options, parse
from minidl.app.inputs import Sequences, read_data
from minidl.app.interrupt import stop_after_the_step
from minidl.app.room import require_that_it_fits, settle
from minidl.app.session import Length, Session, fixed_arguments, refuse_what_cannot_be_kept, require_a_number
from minidl.app.watch import policy_of, watch
from minidl.data import AnyBatch, BadFiles, Data, Feed, TextBatch, batches_ahead
from minidl.data.text import Sentences
from minidl.device import Device
from minidl.errors import UserError
from minidl.memory.ledger import Demand
from minidl.optim import SGD, Adam, AdamW, Optimizer, Schedule
from minidl.report.meter import Meter
from minidl.report.result import LargestOp, Result
from minidl.report.summary import summary
from minidl.tensor import Tensor
from minidl.training import Trainer, detect_anomaly
from minidl.training.metrics import Score
from minidl.units import format_bytes
from models import weights

TOLD = 10  # of the files that were left out
ENDLESS = 1 << 30


def build(options: Options, data: Data, steps: int | None = None) -> Trainer:
    """A new model with its optimizer in the current runtime; ``steps``: how many it will be trained for, if known."""
    known = models.find(options.model)
    if options.label_smoothing and (known.text or known.loss is not models.classification_loss):
        raise UserError(f"--label-smoothing is for networks with one label an image, not for {options.model}")
    if known.text:
        model = models.create(options.model, vocabulary=len(data.vocabulary) if isinstance(data, Sentences) else None)
    else:
        model = models.create(options.model, num_classes=data.num_classes if data.real else options.num_classes,
                              in_channels=data.input_shape[0] if data.real else None, image_size=data.input_shape[1])
    name = options.optimizer or ("adamw" if known.text else "momentum")
    lr = _or(options.lr, 0.001 if name.startswith("adam") else 0.05)
    decays = (lambda p: p.ndim > 1) if options.decay == "matrices" else None
    optimizer: Optimizer
    if name.startswith("adam"):
        optimizer = (AdamW if name == "adamw" else Adam)(model.parameters(), lr=lr, weight_decay=options.weight_decay,
                                                         decays=decays)
    else:
        optimizer = SGD(model.parameters(), lr=lr, momentum=_or(options.momentum, 0.0 if name == "sgd" else 0.9),
                        weight_decay=options.weight_decay, decays=decays)

    def loss(batch: AnyBatch) -> Tensor:
        runtime = current_runtime()
        if isinstance(batch, TextBatch):
            return model(*batch.upload(runtime))
        if known.text:
            shape = Sequences.of(known.text, options.sequence_length)
            text = replace(known.text, length=shape.length, predictions=shape.predictions)
            return model(*known.text_batch(runtime, batch.size, text))
        images, labels = batch.upload(runtime)
        if options.label_smoothing:
            return models.classification_loss(model, images, labels, label_smoothing=options.label_smoothing)
        return known.loss(model, images, labels)

    schedule = Schedule(lr, options.schedule, options.warmup_steps, steps or ENDLESS, options.decay_steps,
                        options.decay_rate)
    return Trainer(model, optimizer, loss, schedule, accumulate=options.accumulate, clip_norm=options.clip_grad,
                   score=known.score)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    try:
        options = parse(arguments)
        if options.list_models:
            print(models.listing())
            return 0
        return run(options)
    except KeyboardInterrupt:  # outside of the loop, or for the second time
        print("train.py: stopped", file=sys.stderr)
        return 130
    except (UserError, MemoryError) as error:  # the second: this machine has less than the budget
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2


def run(options: Options) -> int:
    """The whole story; returns the exit code. Raises UserError."""
    device, policy = choose_device(options), policy_of(options)
    for path in filter(None, (options.json, options.save, options.save_plan, options.save_trace)):
        check_writable(path)
    if options.save and not device.has_values:
        raise UserError(f"--save: {device.name} computes no values that could be kept; --device cpu does")
    if options.weights and not device.has_values:
        raise UserError(f"--weights: {device.name} computes no values to start from; --device cpu does")
    refuse_what_cannot_be_kept(options, device=device.name, has_values=device.has_values)
    bad = BadFiles(skip=options.skips_bad_files)
    data = read_data(options, models.find(options.model), bad, has_values=device.has_values)
    if data.real:
        print(f"data {options.data}: {data.described}", flush=True)
    parts = options.accumulate
    most = (data.train_size or ENDLESS) // parts

    # What fits, before anything is allocated.
    _, default_host = default_memory(device)
    host = _or(options.host_memory, default_host)

    def ahead(batch: int) -> int:
        """How many batches are made ahead of the step."""
        return batches_ahead(data.shapes(batch * parts).nbytes, host) if data.feed is not None else 0

    setup = Setup(lambda batch: partial(build(options, data).step, data.shapes(batch * parts)), device,
                  options.policy, host, options.precision, options.seed, options.placement,
                  lambda batch: ahead(batch) * data.shapes(batch * parts).nbytes)
    batch, budget = settle(options, setup, most)
    demand = setup.demand(batch)
    require_that_it_fits(setup, batch, budget, demand, most)
    items, kind = ("images", "images") if len(data.input_shape) == 3 else ("sequences", "tokens a sequence")
    print(f"{options.model}, batch {batch}, {'x'.join(map(str, data.input_shape))} {kind}, "
          f"{options.precision}, budget {format_bytes(budget)}, {options.manager}", flush=True)

    epoch = data.train_size and data.train_size // (batch * parts)
    steps = options.steps or ((options.epochs or EPOCHS) * epoch if epoch else SYNTHETIC_STEPS)
    length = Length(steps, epoch)
    session = Session(options, length, fixed_arguments(options, batch, steps), has_values=device.has_values)
    with Runtime(device, memory_budget=budget, host_memory=setup.for_tensors(batch), policy=policy,
                 placement=options.placement, precision=options.precision, seed=options.seed,
                 switches=options.switches) as runtime:
        trainer = build(options, data, steps)
        done = session.begin(trainer)
        if options.weights and not done:
            weights.load(trainer.model, options.weights)
        if data.feed is not None:
            data.feed.ahead = ahead(batch)
        meter = Meter(runtime, batch * parts, time.perf_counter if device.has_values else device.now, data.feed,
                      items=items)
        endless = data.batches(batch * parts, seed=options.seed, skip=done)
        batches = islice(endless, steps - done)
        score = None
        with (closing(endless), stop_after_the_step() as stop,
              detect_anomaly() if options.detect_anomaly else nullcontext(),
              watch(options, runtime, trainer.model) as watched,
              tqdm(batches, initial=done, total=steps, bar_format="{n_fmt}/{total_fmt} |{bar:20}| {desc}") as bar):
            for examples in bar:
                meter.add(trainer.step(examples))
                watched.note()
                bar.set_description_str(meter.bar_fields(), refresh=False)
                require_a_number(meter.steps[-1].loss, trainer)
                ended = length.ends_epoch(trainer.steps_done) or trainer.steps_done == steps
                score = trainer.evaluate(data.test_batches(batch)) if ended else None
                session.note(trainer, meter, score)
                meter.restart()
                if stop:
                    break
        if trainer.steps_done < steps:
            session.save(trainer)
            print(session.how_to_go_on(trainer.steps_done))
            return stop.exit_code
        if options.save:
            save(trainer.model, options.save)
        if not meter.steps:
            print(f"nothing was left to do: all {steps} steps are done")
            return 0
        result = conclude(options, device, meter, demand, score, data.feed, bad)
    text = summary(result, setup.unmanaged_seconds(batch), advice(setup, result, most=most), items=items)
    print(text)
    for message in bad.messages[:TOLD]:
        print(f"  left out: {message}")
    session.conclude(text, result)
    if options.json:
        result.write(options.json)
    explained = watched.conclude()
    if explained:
        print(explained)
    return 0


def choose_device(options: Options) -> Device:
    """The device asked for; says which and why."""
    name, why = options.device, "as asked for"
    if name == "auto":
        if options.data == "synthetic":
            name, why = "sim:p100", "auto: synthetic data teaches nothing but memory and time; --device cpu computes"
        else:
            name, why = "cpu", "auto: real data, and no GPU that this version could use"
    device = devices.create(name, precision=options.precision, cupti=options.cupti)
    device.attention = options.attention
    print(f"device {name} ({why})", flush=True)
    return device


def conclude(options: Options, device: Device, meter: Meter, demand: Demand, score: Score | None, feed: Feed | None,
             bad: BadFiles) -> Result:
    """The numbers of the run. Of a device that computes, modelled times say nothing: only measured ones are told."""
    scores = score.named if score else {}
    stats, simulated = meter.runtime.stats(), not device.has_values
    timed = simulated or device.wall_clock
    seconds = meter.median(lambda step: step.seconds)
    return Result(
        model=options.model, batch=meter.batch // options.accumulate, device=device.name,
        policy=meter.runtime.policy.name, precision=meter.runtime.precision.name,
        budget_bytes=stats.budget_bytes, peak_bytes=stats.peak_bytes, unmanaged_peak_bytes=demand.unmanaged_peak_bytes,
        largest_op=LargestOp(demand.largest_op, demand.largest_op_bytes),
        step_seconds=seconds, items_per_second=meter.batch / seconds,
        swapped_out_bytes=int(meter.median(lambda step: step.grown.swapped_out_bytes)),
        swapped_in_bytes=int(meter.median(lambda step: step.grown.swapped_in_bytes)),
        recomputed_bytes=int(meter.median(lambda step: step.grown.recomputed_bytes)),
        recompute_seconds=meter.median(lambda step: step.grown.recompute_seconds) if timed else None,
        stall_seconds=meter.median(lambda step: step.grown.stall_seconds) if timed else None,
        host_peak_bytes=stats.host_peak_bytes, loss=None if simulated else meter.steps[-1].loss,
        accuracy=scores.get("top1"), accuracy_top5=scores.get("top5"), dice=scores.get("dice"),
        masked_lm_loss=scores.get("masked_lm_loss"), masked_lm_accuracy=scores.get("masked_lm_accuracy"),
        next_sentence_accuracy=scores.get("next_sentence_accuracy"),
        data_seconds=meter.median(lambda step: step.data_seconds),
        examples_per_second=feed.per_second if feed is not None else None, skipped_files=len(bad))


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


if __name__ == "__main__":
    sys.exit(main())
