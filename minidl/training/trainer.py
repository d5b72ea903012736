"""One training step, and one pass over test data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from minidl.autograd import no_grad
from minidl.data import AnyBatch
from minidl.nn import Module
from minidl.ops import scale
from minidl.optim import Optimizer, Schedule, clip_global_norm
from minidl.runtime import current_runtime, parameter
from minidl.tensor import Tensor
from minidl.training import scores
from minidl.training.metrics import Score

STEPS = "steps"  # the runtime's counter of steps done: a dry run puts it back, a checkpoint keeps it


class Trainer:
    """A model and its optimizer in the current runtime, and what one step of them is.

    loss         uploads a batch and returns the scalar to differentiate. It must keep no handle on images or logits:
                 that would keep their memory.
    schedule     the learning rate of each step
    accumulate   parts that a batch is cut into. Their gradients are added up before the one update; a loss that is a
                 mean over equal parts is the mean of theirs. (Batch norm normalises each part by itself.)
    clip_norm    the most that the gradients' global norm may be; None: no limit
    score        of the model's predictions for a batch: one of ``minidl.training.scores``
    """

    def __init__(self, model: Module, optimizer: Optimizer, loss: Callable[[Any], Tensor], schedule: Schedule, *,
                 accumulate: int = 1, clip_norm: float | None = None,
                 score: Callable[[Module, Any], Score | None] = scores.of_images) -> None:
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.sound = True  # false from the beginning of a step to its end: one that fails leaves half of an update
        self._loss = loss
        self._score = score
        # On the device, so that the parts' losses are added up without being read one by one.
        self._total = parameter((), requires_grad=False) if accumulate > 1 else None

    @property
    def steps_done(self) -> int:
        """How many steps the current runtime has done, those before a checkpoint included."""
        return current_runtime().counters.get(STEPS, 0)

    def step(self, batch: AnyBatch) -> float:
        """Train on one batch in one iteration; returns the loss, NaN on a device without values. Raises OutOfMemory."""
        runtime, done = current_runtime(), self.steps_done
        self.optimizer.lr = self.schedule(done)
        self.sound = False
        with runtime.iteration():
            self.optimizer.zero_grad()
            total = self._add_gradients(batch)
            if self.clip_norm is not None:
                clip_global_norm(self.optimizer.parameters, self.clip_norm)
            self.optimizer.step()
            loss: float = total.item()
            del total
        runtime.counters[STEPS] = done + 1
        self.sound = True
        return loss

    def _add_gradients(self, batch: AnyBatch) -> Tensor:
        """Differentiate the loss of a batch, part by part; returns it."""
        if self._total is None:
            loss = self._loss(batch)
            loss.backward()
            return loss
        self._total.fill_(0.0)
        for part in batch.split(self.accumulate):
            loss = scale(self._loss(part), 1.0 / self.accumulate)
            loss.backward()
            self._total.add_(loss.detach())
            del loss  # its record is all that still holds the images
        return self._total.alias()

    def evaluate(self, batches: Iterable[AnyBatch]) -> Any:
        """The Score of all batches together, in inference mode; None without any, or without values."""
        score: Any = None
        if current_runtime().device.has_values:
            for batch in batches:
                found = self.predict(batch)
                score = found if score is None else score + found
        return score

    def predict(self, batch: AnyBatch) -> Any:
        """The Score of one batch, in inference mode and in an iteration of its own; None if it is of shapes alone."""
        self.model.eval()
        try:
            with no_grad(), current_runtime().iteration():
                return self._score(self.model, batch)
        finally:
            self.model.train()
