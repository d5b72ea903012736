"""Train a network in as much memory as you allow it: model, device, budget, policy, loop, report.

    python train.py --model resnet50 --batch 1014
    python train.py --model lenet --data digits --memory-budget 50%

What fits is known before the first step, from twins that have shapes only (``minidl.fit``); what does not is refused
with the numbers that would do. Exit code 2 means that something asked for cannot be done. See docs/train.md.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

import models
from minidl import Runtime, current_runtime, no_grad
from minidl import device as devices
from minidl.data import Batch, Data, Digits, Synthetic
from minidl.device import Device
from minidl.errors import UserError
from minidl.fit import Setup, default_memory, largest_batch, smallest_budget
from minidl.memory.ledger import Demand
from minidl.meta import ALIGNMENT
from minidl.nn import Module
from minidl.ops import cross_entropy
from minidl.optim import SGD, Adam, AdamW, Optimizer
from minidl.report.advice import advice
from minidl.report.cli import DIGITS_EPOCHS, SYNTHETIC_STEPS, Options, Share, parse
from minidl.report.meter import Meter
from minidl.report.result import LargestOp, Result
from minidl.report.summary import summary
from minidl.tensor import Tensor
from minidl.units import format_bytes
from models import bert

DIGITS_IMAGE_SIZE = 32  # at most, unless asked for: there is no more in them
ENDLESS = 1 << 30


class Training:
    """A model and its optimizer in the current runtime, and what one step of them is."""

    def __init__(self, options: Options, data: Data) -> None:
        real = isinstance(data, Digits)
        self.text = models.find(options.model).text
        self.model: Module = models.create(options.model) if self.text else models.create(
            options.model, num_classes=data.num_classes if real else options.num_classes,
            in_channels=data.input_shape[0] if real else None, image_size=data.input_shape[1])
        self.optimizer: Optimizer
        name = options.optimizer or ("adamw" if self.text else "momentum")
        if name.startswith("adam"):
            kind = AdamW if name == "adamw" else Adam
            self.optimizer = kind(self.model.parameters(), lr=_or(options.lr, 0.001),
                                  weight_decay=options.weight_decay)
        else:
            momentum = _or(options.momentum, 0.0 if name == "sgd" else 0.9)
            self.optimizer = SGD(self.model.parameters(), lr=_or(options.lr, 0.05), momentum=momentum,
                                 weight_decay=options.weight_decay)

    def step(self, batch: Batch) -> float:
        """One iteration; returns the loss, NaN on a device without values."""
        runtime = current_runtime()
        with runtime.iteration():
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            self.optimizer.step()
            return loss.item()

    def loss(self, batch: Batch) -> Tensor:
        """What to differentiate. No handle on images or logits outlives it: that would keep their memory."""
        runtime = current_runtime()
        if self.text:
            return bert.loss(self.model, bert.synthetic_batch(runtime, batch.size, self.text))
        images, labels = batch.upload(runtime)
        return cross_entropy(self.model(images), labels)

    def accuracy(self, batches: Iterator[Batch]) -> float | None:
        """Share of the images whose largest logit is that of their label; None without images, or without values."""
        runtime = current_runtime()
        right = count = 0
        self.model.eval()
        with no_grad():
            for batch in batches if runtime.device.has_values else ():
                with runtime.iteration():
                    images, _ = batch.upload(runtime)
                    right += int((self.model(images).numpy().argmax(axis=1) == batch.labels).sum())
                    count += batch.size
                    del images
        self.model.train()
        return right / count if count else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    try:
        run(parse(arguments))
    except (UserError, MemoryError) as error:  # the second: this machine has less than the budget
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: Options) -> None:
    """The whole story. Raises UserError."""
    device = choose_device(options)
    for path in filter(None, (options.json, options.save)):
        check_writable(path)
    if options.save and not device.has_values:
        raise UserError(f"--save: {device.name} computes no values that could be kept; --device cpu does")
    data = read_data(options, device)
    most = data.train_size or ENDLESS

    # What fits, before anything is allocated.
    _, default_host = default_memory(device)
    setup = Setup(lambda batch: partial(Training(options, data).step, Batch(batch, data.input_shape)), device,
                  options.policy, _or(options.host_memory, default_host), options.seed)
    batch, budget = settle(options, setup, most)
    demand = setup.demand(batch)
    require_that_it_fits(setup, batch, budget, demand, most)
    kind = "images" if len(data.input_shape) == 3 else "tokens a sequence"
    print(f"{options.model}, batch {batch}, {'x'.join(map(str, data.input_shape))} {kind}, "
          f"budget {format_bytes(budget)}, policy {options.policy}", flush=True)

    steps = options.steps or SYNTHETIC_STEPS
    if data.train_size and not options.steps:
        steps = (options.epochs or DIGITS_EPOCHS) * (data.train_size // batch)
    with Runtime(device, memory_budget=budget, host_memory=setup.host_memory, policy=options.policy,
                 seed=options.seed) as runtime:
        training = Training(options, data)
        meter = Meter(runtime, batch, time.perf_counter if device.has_values else device.now)
        with tqdm(islice(data.batches(batch, seed=options.seed), steps), total=steps,
                  bar_format="{n_fmt}/{total_fmt} |{bar:20}| {desc}") as bar:
            for images in bar:
                meter.add(training.step(images))
                bar.set_description_str(meter.bar_fields(), refresh=False)
        result = conclude(options, device, meter, demand, training.accuracy(data.test_batches(batch)))
        if options.save:
            save(training.model, options.save)
    print(summary(result, setup.unmanaged_seconds(batch), advice(setup, result, most=most)))
    if options.json:
        result.write(options.json)


def choose_device(options: Options) -> Device:
    """The device asked for; says which and why."""
    name, why = options.device, "as asked for"
    if name == "auto":
        if options.data == "synthetic":
            name, why = "sim:p100", "auto: synthetic data teaches nothing but memory and time; --device cpu computes"
        else:
            name, why = "cpu", "auto: real data, and no GPU that this version could use"
    device = devices.create(name)
    print(f"device {name} ({why})", flush=True)
    return device


def read_data(options: Options, device: Device) -> Data:
    """The data set, in the size that the model gets. Raises UserError."""
    known = models.find(options.model)
    if known.text is not None:
        if options.data == "digits" or options.image_size or options.num_classes:
            raise UserError(f"{options.model} reads text: --data digits, --image-size and --num-classes are for images")
        return Synthetic((known.text.length,), 0, values=False)  # it makes its own noise
    if options.data == "digits":
        digits = Digits(options.image_size or min(known.image_size, DIGITS_IMAGE_SIZE))
        if _or(options.num_classes, digits.num_classes) != digits.num_classes:
            raise UserError(f"--num-classes {options.num_classes}: the digits have {digits.num_classes} classes")
        return digits
    size = options.image_size or known.image_size
    return Synthetic((known.input_shape[0], size, size), options.num_classes or known.num_classes,
                     values=device.has_values)


def settle(options: Options, setup: Setup, most: int) -> tuple[int, int]:
    """(batch, budget in bytes) out of what may be ``max`` and a percentage. Raises UserError."""
    budget, batch = options.memory_budget, options.batch
    if budget is None:
        budget, _ = default_memory(setup.device)
    elif isinstance(budget, Share):
        assert batch is not None  # the command line is checked
        budget = int(setup.demand(batch).unmanaged_peak_bytes * budget.of_peak)
    budget = budget // ALIGNMENT * ALIGNMENT
    if budget == 0:
        raise UserError(f"--memory-budget must be at least {ALIGNMENT} bytes")
    if batch is None:
        found = largest_batch(setup, budget, most=most)
        if not found.batch:
            raise UserError(f"not even a batch of 1 fits {format_bytes(budget)}: {found.limit}")
        print(f"the largest batch is {found.batch}: {found.limit}", flush=True)
        batch = found.batch
    if batch > most:
        raise UserError(f"--batch {batch}: there are only {most} images to train on")
    return batch, budget


def require_that_it_fits(setup: Setup, batch: int, budget: int, demand: Demand, most: int) -> None:
    """Raises UserError with the largest operation, the smallest budget and the largest batch that would do."""
    shortage = setup.trial(batch, budget).shortage
    if shortage is None:
        return
    least = smallest_budget(setup, batch)
    found = largest_batch(setup, budget, most=most, full_host=True).batch
    host = f" and {format_bytes(setup.host_memory)} of host memory" if shortage.host_full else ""
    batches = f"the largest batch that would do in this budget is {found}" if found else "no batch would do in this one"
    raise UserError(
        f"batch {batch} does not fit {format_bytes(budget)}{host} under policy {setup.policy}. The operation with the "
        f"largest working set, {demand.largest_op}, needs {demand.largest_op_bytes} bytes "
        f"({format_bytes(demand.largest_op_bytes)}); the smallest budget that would do is {least} bytes "
        f"({format_bytes(least)}); {batches}")


def conclude(options: Options, device: Device, meter: Meter, demand: Demand, accuracy: float | None) -> Result:
    """The numbers of the run. Modelled time is the simulator's alone: elsewhere none of it is told."""
    stats, simulated = meter.runtime.stats(), not device.has_values
    seconds = meter.median(lambda step: step.seconds)
    return Result(
        model=options.model, batch=meter.batch, device=device.name, policy=options.policy,
        budget_bytes=stats.budget_bytes, peak_bytes=stats.peak_bytes, unmanaged_peak_bytes=demand.unmanaged_peak_bytes,
        largest_op=LargestOp(demand.largest_op, demand.largest_op_bytes),
        step_seconds=seconds, items_per_second=meter.batch / seconds,
        swapped_out_bytes=int(meter.median(lambda step: step.grown.swapped_out_bytes)),
        swapped_in_bytes=int(meter.median(lambda step: step.grown.swapped_in_bytes)),
        recomputed_bytes=int(meter.median(lambda step: step.grown.recomputed_bytes)),
        recompute_seconds=meter.median(lambda step: step.grown.recompute_seconds) if simulated else None,
        stall_seconds=meter.median(lambda step: step.grown.stall_seconds) if simulated else None,
        host_peak_bytes=stats.host_peak_bytes, loss=None if simulated else meter.steps[-1].loss, accuracy=accuracy)


def check_writable(path: str) -> None:
    """Raises UserError, before any training, if a file cannot be written; leaves what is there as it is."""
    existed = Path(path).exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    if not existed:
        with suppress(OSError):
            Path(path).unlink()


def save(model: Module, path: str) -> None:
    """Parameters and buffers by name, as safetensors. Raises UserError."""
    from safetensors.numpy import save_file

    try:
        save_file(model.state_dict(), path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


if __name__ == "__main__":
    sys.exit(main())
