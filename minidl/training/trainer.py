"""The Trainer: training steps, and passes over test data."""

from collections.abc import Callable, Iterable
from typing import Any

from minidl.autograd import no_grad
from minidl.data import AnyBatch
from minidl.nn import Module
from minidl.ops import scale
from minidl.optim import Optimizer, Schedule, clip_global_norm
from minidl.runtime import current_runtime, parameter
from minidl.tensor import Tensor
from minidl.training import metrics
from minidl.training.metrics import Score

STEPS = "steps"  # the runtime's counter of steps done: a dry run restores it, a checkpoint keeps it


class Trainer:
    """It trains a model with an optimizer in the current runtime.

    loss         a function that uploads a batch and returns the scalar to differentiate. It must keep no handle on
                 images or logits, since that would keep their memory in use
    schedule     the learning rate of each step
    accumulate   number of parts of a batch. Their gradients are added up before one update, and the loss is the mean of
                 the parts' losses. (Batch norm normalises each part on its own.)
    clip_norm    the largest global norm of the gradients; None for no limit
    score        a function that scores the model's predictions for a batch: one of ``minidl.training.metrics``
    """

    def __init__(self, model: Module, optimizer: Optimizer, loss: Callable[[Any], Tensor], schedule: Schedule, *,
                 accumulate: int = 1, clip_norm: float | None = None,
                 score: Callable[[Module, Any], Score | None] = metrics.of_images) -> None:
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.sound = True  # False during a step, so also after a failed step, which may leave half of an update
        self._loss = loss
        self._score = score
        # On the device, so that the host need not wait for the loss of each part.
        self._total = parameter((), requires_grad=False) if accumulate > 1 else None

    @property
    def steps_done(self) -> int:
        """The number of steps that the current runtime has done, including those before a checkpoint."""
        return current_runtime().counters.get(STEPS, 0)

    def step(self, batch: AnyBatch) -> float:
        """Train on one batch in one iteration; return the loss, the mean over parts, or NaN without values.
        Raises OutOfMemory."""
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
        """Compute the loss of a batch and its gradients, part by part; return the loss."""
        if self._total is None:
            loss = self._loss(batch)
            loss.backward()
            return loss
        self._total.fill_(0.0)
        for part in batch.split(self.accumulate):
            loss = scale(self._loss(part), 1.0 / self.accumulate)
            loss.backward()
            self._total.add_(loss.detach())
            del loss  # its lineage is the last reference to the images
        return self._total.alias()

    def evaluate(self, batches: Iterable[AnyBatch]) -> Any:
        """Return the Score of all batches together, in inference mode; None without batches or values."""
        score: Any = None
        if current_runtime().device.has_values:
            for batch in batches:
                found = self.predict(batch)
                score = found if score is None else score + found
        return score

    def predict(self, batch: AnyBatch) -> Any:
        """Return the Score of one batch, in inference mode, in a separate iteration; None if it has no labels.
        The model is in training mode afterwards."""
        self.model.eval()
        try:
            with no_grad(), current_runtime().iteration():
                return self._score(self.model, batch)
        finally:
            self.model.train()
