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
from minidl.lab import training_step
from minidl.meta import DType, float32, int64
from minidl.nn import Module
from minidl.ops.update import normal_
from minidl.optim import Optimizer
from minidl.tensor import Tensor

LEARNING_RATE = {"images": 1e-3, "text": 1e-4}  # small: noise cannot be learned, and speed is the matter


class Network(training_step.TrainedNetwork):
    """A model with its optimizer and its data in the current runtime; ``step`` is one training step."""

    def __init__(self, runtime: Runtime, training: Training) -> None:
        options: dict[str, Any] = dict(training.options)
        reads_text = models.find(training.model).text is not None
        if not reads_text and training.side is not None:
            options.setdefault("image_size", training.side)
        super().__init__(training.model, training.batch, side=training.side, options=options,
                         learning_rate=LEARNING_RATE["text" if reads_text else "images"])
        self.given: list[tuple[DType, np.ndarray]]  # uploaded in each step
        if self.text is not None:
            text = replace(self.text, vocabulary=options.get("vocabulary", self.text.vocabulary))
            if training.length is not None:
                text = replace(text, length=training.length, predictions=min(text.predictions, training.length // 4))
            self.text = text
            self.given = [(t.dtype, t.numpy()) for t in self.known.text_batch(runtime, training.batch, text)]
        else:
            classes = options.get("num_classes", self.known.num_classes)
            self.given = [(int64, np.random.default_rng(0).integers(0, classes, self.labels_shape))]

    def inputs(self) -> Sequence[Tensor]:
        """Return a batch of inputs with values."""
        given = [self.runtime.tensor(values, dtype=dtype) for dtype, values in self.given]
        if self.text is not None:
            return given
        images = self.runtime.tensor(None, shape=self.images_shape, dtype=float32)
        normal_(images, seed=self.runtime.next_seed())
        return images, *given

    def step_and_loss(self) -> float:
        """Carry out one training step; return the loss of its forward pass, for which it waits."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def state(self, losses: list[float]) -> dict[str, bytes]:
        """Return all that training changes, as ``state_of`` does."""
        return state_of(self.runtime, self.model, self.optimizer, losses)


def state_of(runtime: Runtime, model: Module, optimizer: Optimizer, losses: Sequence[float]) -> dict[str, bytes]:
    """Return all that training changes, as bytes by name; it must be the same under every policy and budget.

    These are parameters, buffers, the optimizer's state, gradients, losses, and the state of the random generator.
    """
    arrays: dict[str, Any] = {f"state {name}": array for name, array in model.state_dict().items()}
    arrays |= {f"optimizer {name}": array for name, array in optimizer.state_dict().items()}
    arrays |= {f"gradient {name}": p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    state = {name: array.tobytes() for name, array in arrays.items()}
    state["losses"] = np.array(losses).tobytes()
    state["random"] = repr((runtime.seed, sorted(runtime.counters.items()))).encode()
    return state


def program(training: Training) -> Program:
    """Return a function that makes the network in a runtime and returns its training step."""
    def make(runtime: Runtime) -> Callable[[], Any]:
        return Network(runtime, training).step
    return make
