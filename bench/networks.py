"""A training step of each network of ``train.py --list-models``, as train.py has it."""

from collections.abc import Callable

from minidl import Runtime, models
from minidl.lab.training_step import BATCHES
from minidl.meta import int64
from minidl.optim import SGD, AdamW, Optimizer

__all__ = ["BATCHES", "step_of"]


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
