"""Makes a network with its loss, optimizer and learning-rate schedule from the flags of a command line."""

from collections.abc import Callable

from minidl import models
from minidl.cli.app.options import Options
from minidl.data import AnyBatch, Data, TextBatch, TokenBatch
from minidl.data.text import Sentences, Windows
from minidl.errors import UserError
from minidl.nn import Module, lora
from minidl.optim import SGD, Adam, AdamW, Optimizer, Schedule
from minidl.runtime import current_runtime
from minidl.tensor import Tensor
from minidl.training import Trainer

ENDLESS = 1 << 30  # steps, where their number is not known
RATE, ADAM_RATE = 0.05, 0.001
MOMENTUM = 0.9


def build(options: Options, data: Data, *, steps: int | None = None) -> Trainer:
    """Return a trainer of a new network in the current runtime. steps: the length of the training, if known.

    Raises UserError for flags that the network does not support.
    """
    known = models.find(options.model)
    if options.label_smoothing and (known.text or known.loss is not models.classification_loss):
        raise UserError(f"--label-smoothing is for networks with one label an image, not for {options.model}")
    model = _network(options, data, reads_text=known.text is not None)
    if options.lora is not None:
        lora.add(model, options.lora, options.lora_alpha, target_modules=options.lora_targets)
    optimizer = _optimizer(options, model, reads_text=known.text is not None)
    schedule = Schedule(optimizer.lr, options.schedule, options.warmup_steps, steps or ENDLESS, options.decay_steps,
                        options.decay_rate)
    return Trainer(model, optimizer, _loss(options, known, model), schedule, accumulate=options.accumulate,
                   clip_norm=options.clip_grad, score=known.score)


def _network(options: Options, data: Data, *, reads_text: bool) -> Module:
    if reads_text:
        words = len(data.vocabulary) if isinstance(data, Sentences | Windows) else None
        return models.create(options.model, vocabulary=words)
    return models.create(options.model, num_classes=data.num_classes if data.real else options.num_classes,
                      in_channels=data.input_shape[0] if data.real else None, image_size=data.input_shape[1])


def _optimizer(options: Options, model: Module, *, reads_text: bool) -> Optimizer:
    name = options.optimizer or ("adamw" if reads_text else "momentum")
    lr = options.lr if options.lr is not None else ADAM_RATE if name.startswith("adam") else RATE
    learning = [p for p in model.parameters() if p.requires_grad]
    decays = (lambda p: p.ndim > 1) if options.decay == "matrices" else None
    if name.startswith("adam"):
        return (AdamW if name == "adamw" else Adam)(learning, lr=lr, weight_decay=options.weight_decay,
                                                    decays=decays)
    momentum = options.momentum if options.momentum is not None else 0.0 if name == "sgd" else MOMENTUM
    return SGD(learning, lr=lr, momentum=momentum, weight_decay=options.weight_decay, decays=decays)


def _loss(options: Options, known: models.Model, model: Module) -> Callable[[AnyBatch], Tensor]:
    """Return a function that copies a batch to the device and returns its loss, a scalar tensor.
    When that function returns, no handle on images or logits is left, so their memory can be freed. A synthetic batch
    of text is made on the device."""
    def loss(batch: AnyBatch) -> Tensor:
        runtime = current_runtime()
        if known.text is not None:
            shape = known.text.of_length(options.sequence_length)
            text = (batch.upload(runtime) if isinstance(batch, TextBatch | TokenBatch) else
                    known.text_batch(runtime, batch.size, shape))
            value: Tensor = model(*text)
            return value
        images, labels = batch.upload(runtime)
        if options.label_smoothing:
            return models.classification_loss(model, images, labels, label_smoothing=options.label_smoothing)
        return known.loss(model, images, labels)
    return loss
