"""A training step of a network of ours, and its trace with unlimited memory."""

from __future__ import annotations

from collections.abc import Callable

from minidl import models
from minidl.memory.switches import ALL_ON, Switches
from minidl.meta import int64
from minidl.optim import SGD, AdamW
from minidl.plan.trace import Trace
from minidl.report.recording import recording
from minidl.runtime import Runtime, current_runtime
from minidl.tensor import Tensor

UNLIMITED = 1 << 50  # bytes
BATCHES = {  # every network at a batch of about a second on a modelled P100
    "mlp": 4096, "lenet": 2048, "vgg11": 96, "vgg13": 64, "vgg16": 96, "vgg19": 64, "vgg11_bn": 96, "vgg13_bn": 64,
    "vgg16_bn": 64, "vgg19_bn": 64, "resnet18": 256, "resnet34": 192, "resnet50": 128, "resnet101": 96,
    "resnet152": 64, "resnet20": 2048, "inception_v3": 96, "inception_v3_aux": 96, "inception_v4": 64,
    "densenet121": 64, "densenet169": 64, "densenet201": 48, "unet": 16, "unet-small": 64, "bert-tiny": 512,
    "bert-mini": 256, "bert-small": 128, "bert-medium": 96, "bert-base": 64, "bert-large": 24, "gpt2": 4,
    "gpt2-medium": 2, "gpt2-large": 2, "gpt2-xl": 1,
}
SEPARATE = Switches(fused=False)  # as in the frameworks whose speeds were published


def training_step(name: str, batch: int, side: int | None = None) -> Callable[[], None]:
    """A step of a network in the current runtime, on inputs without values: forward, backward, and SGD with momentum,
    or AdamW for text. ``side``: of images, if not the network's own. Raises UserError for a name that there is not."""
    runtime, known = current_runtime(), models.find(name)
    model = models.create(name)
    optimizer = (AdamW(model.parameters()) if known.text is not None else
                 SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4))
    shape = (batch, *known.input_shape) if side is None else (batch, known.input_shape[0], side, side)

    def loss() -> Tensor:
        if known.text is not None:
            value: Tensor = model(*known.text_batch(runtime, batch, known.text))
            return value
        labels = (batch, *shape[2:]) if known.pixel_labels else (batch,)
        images = runtime.tensor(None, shape=shape)
        targets = runtime.tensor(None, shape=labels, dtype=int64)
        return known.loss(model, images, targets)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def trace_of(name: str, batch: int, *, device: str = "sim:p100", switches: Switches = ALL_ON,
             side: int | None = None) -> Trace:
    """The second iteration of a training with unlimited memory, with all that running it again needs."""
    with Runtime(device=device, policy="none", memory_budget=UNLIMITED, switches=switches) as runtime:
        step = training_step(name, batch, side)
        with recording(runtime) as recorder:
            with runtime.iteration():
                step()
            with runtime.iteration():
                step()
                return recorder.complete(runtime.trace())
