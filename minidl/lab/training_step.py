"""A training step of a network of ``minidl.models``, and its trace with unlimited memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from minidl import device as devices
from minidl import models
from minidl.errors import UserError
from minidl.memory.switches import ALL_ON, Switches
from minidl.meta import int64
from minidl.nn import Module, lora
from minidl.optim import SGD, Adam, AdamW, Optimizer
from minidl.outside.units import UNLIMITED
from minidl.plan.trace import Trace
from minidl.ranks import modelled
from minidl.report.recording import recording
from minidl.runtime import Runtime, current_runtime
from minidl.tensor import Tensor

BATCHES = {  # networks at a batch of about a second on a modelled P100
    "mlp": 4096, "lenet": 2048, "vgg11": 96, "vgg13": 64, "vgg16": 96, "vgg19": 64, "vgg11_bn": 96, "vgg13_bn": 64,
    "vgg16_bn": 64, "vgg19_bn": 64, "resnet18": 256, "resnet34": 192, "resnet50": 128, "resnet101": 96,
    "resnet152": 64, "resnet20": 2048, "inception_v3": 96, "inception_v3_aux": 96, "inception_v4": 64,
    "densenet121": 64, "densenet169": 64, "densenet201": 48, "unet": 16, "unet-small": 64, "bert-tiny": 512,
    "bert-mini": 256, "bert-small": 128, "bert-medium": 96, "bert-base": 64, "bert-large": 24, "gpt2": 4,
    "gpt2-medium": 2, "gpt2-large": 2, "gpt2-xl": 1,
}
SEPARATE = Switches(fused=False)  # as in the frameworks whose speeds were published


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a training step.

    tokens     of a text; None: the network's own
    precision  of the runtime
    lora       the rank of adapters (``nn.lora``), which are then all that is trained; None: everything is
    ranks      number of simulated ranks, each with the given batch; the step is that of one of them
    optimizer  ``sgd``, ``momentum``, ``adam`` or ``adamw``; None: ``adamw`` for text, else ``momentum``
    """

    tokens: int | None = None
    precision: str = "fp32"
    lora: int | None = None
    ranks: int = 1
    optimizer: str | None = None

    def said(self, name: str) -> dict[str, str]:
        """Return the precision, input and optimizer of a network's step, topic -> text.
        Raises UserError for an unknown network."""
        known = models.find(name)
        inputs = ({"tokens": str(known.text.of_length(self.tokens).length)} if known.text is not None
                  else {"images": "x".join(map(str, known.input_shape))})
        return {"precision": self.precision, **inputs, "optimizer": self.updated_by(text=known.text is not None)}

    def updated_by(self, *, text: bool) -> str:
        """Return the name of the optimizer: the given one, else the usual one of networks of text or of images."""
        return self.optimizer or ("adamw" if text else "momentum")


USUAL = Setting()


class TrainedNetwork:
    """A network of ``minidl.models`` with its batch and its optimizer, in the current runtime.

    Without another setting the optimizer is SGD with momentum, or AdamW for text. Raises UserError for an unknown name.
    side     of images in pixels; None: the network's own
    text     the shape of a batch of text; None for a network that reads images
    options  arguments of ``models.create``
    """

    def __init__(self, name: str, batch: int, *, side: int | None = None, learning_rate: float | None = None,
                 options: Mapping[str, Any] = MappingProxyType({}), setting: Setting = USUAL) -> None:
        self.runtime, self.known, self.batch = current_runtime(), models.find(name), batch
        if setting.tokens is not None and self.known.text is None:
            raise UserError(f"{name} reads images, so it takes no number of tokens")
        self.text = self.known.text and self.known.text.of_length(setting.tokens)
        self.model: Module = models.create(name, **options)
        if setting.lora is not None:
            lora.add(self.model, setting.lora)
        learning = [p for p in self.model.parameters() if p.requires_grad]
        kind = setting.updated_by(text=self.text is not None)
        self.optimizer: Optimizer
        if kind in ("sgd", "momentum"):
            self.optimizer = SGD(learning, lr=learning_rate or 0.1, momentum=0.9 if kind == "momentum" else 0.0,
                                 weight_decay=1e-4)
        else:
            self.optimizer = (AdamW if kind == "adamw" else Adam)(learning, lr=learning_rate or 1e-3)
        channels, height, width = self.known.input_shape
        self.images_shape = (batch, channels, side or height, side or width)
        self.labels_shape = (batch, *self.images_shape[2:]) if self.known.pixel_labels else (batch,)

    def inputs(self) -> Sequence[Tensor]:
        """Return inputs without values: images (N, C, H, W) and labels (N,) or (N, H, W); or the tensors of a text."""
        if self.text is not None:
            return self.known.text_batch(self.runtime, self.batch, self.text)
        return (self.runtime.tensor(None, shape=self.images_shape),
                self.runtime.tensor(None, shape=self.labels_shape, dtype=int64))

    def loss(self) -> Tensor:
        """Run the forward pass on new inputs; return the loss, a scalar."""
        if self.text is not None:
            value: Tensor = self.model(*self.inputs())
            return value
        return self.known.loss(self.model, *self.inputs())

    def step(self) -> None:
        """Run one training step: forward, backward, and the optimizer's update."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def training_step(name: str, batch: int, side: int | None = None, setting: Setting = USUAL) -> Callable[[], None]:
    """Return a function that runs a training step of a network in the current runtime, on inputs without values.
    side: of images in pixels; None: the network's own. Raises UserError for an unknown name."""
    return TrainedNetwork(name, batch, side=side, setting=setting).step


def trace_of(name: str, batch: int, *, device: str = "sim:p100", switches: Switches = ALL_ON,
             side: int | None = None, setting: Setting = USUAL) -> Trace:
    """Train a network for two iterations with unlimited memory; return the trace of the second.

    The trace can be run again: it says which tensors each call saves for its gradient, and how long, and has all
    persistent tensors."""
    with Runtime(device=devices.create(device, precision=setting.precision, sharing=setting.ranks),
                 policy="none", memory_budget=UNLIMITED, switches=switches,
                 precision=setting.precision, ranks=modelled(setting.ranks)) as runtime:
        step = training_step(name, batch * setting.ranks, side, setting)
        with recording(runtime) as recorder:
            with runtime.iteration():
                step()
            with runtime.iteration():
                step()
                return recorder.complete(runtime.trace())
