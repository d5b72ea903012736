"""Every network of ``train.py --list-models`` at a batch of about a second on a modelled P100, and a step of it."""

from collections.abc import Callable

from minidl import Runtime, models
from minidl.meta import int64
from minidl.optim import SGD, AdamW, Optimizer

BATCHES = {
    "mlp": 4096, "lenet": 2048, "vgg11": 96, "vgg13": 64, "vgg16": 96, "vgg19": 64, "vgg11_bn": 96, "vgg13_bn": 64,
    "vgg16_bn": 64, "vgg19_bn": 64, "resnet18": 256, "resnet34": 192, "resnet50": 128, "resnet101": 96,
    "resnet152": 64, "resnet20": 2048, "inception_v3": 96, "inception_v3_aux": 96, "inception_v4": 64,
    "densenet121": 64, "densenet169": 64, "densenet201": 48, "unet": 16, "unet-small": 64, "bert-tiny": 512,
    "bert-mini": 256, "bert-small": 128, "bert-medium": 96, "bert-base": 64, "bert-large": 24, "gpt2": 4,
    "gpt2-medium": 2, "gpt2-large": 2, "gpt2-xl": 1,
}


def step_of(runtime: Runtime, name: str, batch: int) -> Callable[[], None]:
    """A training step as train.py has it: SGD with momentum, for text AdamW; the inputs have no values."""
    known = models.find(name)
    model = models.create(name)
    optimizer: Optimizer
    if known.text is not None:
        optimizer = AdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        if known.text is not None:
            loss = model(*known.text_batch(runtime, batch, known.text))
        else:
            images = runtime.tensor(None, shape=(batch, *known.input_shape))
            shape = (batch, *known.input_shape[1:]) if known.pixel_labels else (batch,)
            loss = known.loss(model, images, runtime.tensor(None, shape=shape, dtype=int64))
        loss.backward()
        optimizer.step()

    return step
