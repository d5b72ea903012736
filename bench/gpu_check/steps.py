"""A training step of a known network on noise that is made on the device, on any device alike.

Images are drawn anew in each step, by an operation of the step, so that nothing is uploaded and values are those of
data; tokens and labels are few and are uploaded. The same program runs on a simulator, where it has no values.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.gpu_check.setting import Program, Training
from minidl import Runtime, models
from minidl.meta import float32, int64
from minidl.nn import Module
from minidl.ops.update import normal_
from minidl.optim import SGD, AdamW, Optimizer
from minidl.tensor import Tensor

LEARNING_RATE = {"images": 1e-3, "text": 1e-4}  # small: noise cannot be learned, and speed is the matter


class Network:
    """A model with its optimizer and its data in the current runtime; ``step`` is one training step."""

    def __init__(self, runtime: Runtime, training: Training) -> None:
        self.runtime = runtime
        self.entry = models.find(training.model)
        options: dict[str, Any] = dict(training.options)
        if self.entry.text is None and training.side is not None:
            options.setdefault("image_size", training.side)
        self.model: Module = models.create(training.model, **options)
        self.optimizer: Optimizer
        rng = np.random.default_rng(0)
        if self.entry.text is not None:
            text = replace(self.entry.text, vocabulary=options.get("vocabulary", self.entry.text.vocabulary))
            if training.length is not None:
                text = replace(text, length=training.length, predictions=min(text.predictions, training.length // 4))
            self.optimizer = AdamW(self.model.parameters(), lr=LEARNING_RATE["text"])
            self.batch = [(t.shape, t.dtype, t.numpy()) for t in self.entry.text_batch(runtime, training.batch, text)]
        else:
            channels, *sides = self.entry.input_shape
            side = training.side or sides[0]
            self.shape = (training.batch, channels, side, side)
            labels = (training.batch, side, side) if self.entry.pixel_labels else (training.batch,)
            self.optimizer = SGD(self.model.parameters(), lr=LEARNING_RATE["images"], momentum=0.9, weight_decay=1e-4)
            classes = options.get("num_classes", self.entry.num_classes)
            self.batch = [(labels, int64, rng.integers(0, classes, labels))]

    def loss(self) -> Tensor:
        """The loss of a batch: a scalar to differentiate."""
        given = [self.runtime.tensor(values, dtype=dtype) for _, dtype, values in self.batch]
        if self.entry.text is not None:
            loss: Tensor = self.model(*given)
            return loss
        images = self.runtime.tensor(None, shape=self.shape, dtype=float32)
        normal_(images, seed=self.runtime.next_seed())
        return self.entry.loss(self.model, images, given[0])

    def step(self) -> float | None:
        """One training step; nothing waits for it."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        return None

    def step_and_loss(self) -> float:
        """One training step, and the loss before it: waits for the device."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def state(self, losses: list[float]) -> dict[str, bytes]:
        """All that training changes, see ``state_of``."""
        return state_of(self.runtime, self.model, self.optimizer, losses)


def state_of(runtime: Runtime, model: Module, optimizer: Optimizer, losses: Sequence[float]) -> dict[str, bytes]:
    """All that training changes, byte by byte: parameters, buffers, the optimizer's state, gradients, losses, and what
    random numbers follow from. It must be the same under every policy and budget."""
    arrays: dict[str, Any] = {f"state {name}": array for name, array in model.state_dict().items()}
    arrays |= {f"optimizer {name}": array for name, array in optimizer.state_dict().items()}
    arrays |= {f"gradient {name}": p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    state = {name: array.tobytes() for name, array in arrays.items()}
    state["losses"] = np.array(losses).tobytes()
    state["random"] = repr((runtime.seed, sorted(runtime.counters.items()))).encode()
    return state


def program(training: Training) -> Program:
    """What makes the network in a runtime and returns its step."""
    def make(runtime: Runtime) -> Callable[[], Any]:
        return Network(runtime, training).step
    return make
