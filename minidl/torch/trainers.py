"""Callbacks for the trainers of Hugging Face and Lightning, which manage a training from its beginning to its end.

Each function imports its library when it is called. Accelerate has no callbacks: use ``managed`` around the loop.
"""

from __future__ import annotations

from typing import Any

from minidl.errors import UserError
from minidl.torch.managed import managed


def ForTransformers(budget: str | int, **options: Any) -> Any:  # noqa: N802 # it stands where a class is expected
    """Return a ``TrainerCallback`` for Hugging Face: ``Trainer(..., callbacks=[ForTransformers("12GiB")])``.

    budget, options: arguments of ``managed``. The callback's ``memory`` is the ``managed`` object, with its
    ``report()``. The trainer does not tell a callback that a training has failed: then ``memory.stop()``, or the next
    training with this callback, ends the management. Raises UserError if the library is missing, and what ``managed``
    raises.
    """
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise UserError("ForTransformers takes Hugging Face's transformers: pip install transformers") from None

    class Callback(TrainerCallback):
        """The callback that starts ``managed`` when the training begins, and stops it when the training ends."""

        def __init__(self) -> None:
            self.memory = managed(budget, **options)

        def on_train_begin(self, *args: Any, **more: Any) -> None:
            """Start managing the memory of the training, after an earlier training with an error has been stopped."""
            self.memory.stop()  # a training before this one may have ended with an error
            self.memory.start()

        def on_train_end(self, *args: Any, **more: Any) -> None:
            """Stop managing the memory, at the end of the training."""
            self.memory.stop()

    return Callback()


def ForLightning(budget: str | int, **options: Any) -> Any:  # noqa: N802 # it stands where a class is expected
    """Return a ``Callback`` for Lightning: ``Trainer(..., callbacks=[ForLightning("12GiB")])``.

    budget, options: arguments of ``managed``. The callback's ``memory`` is the ``managed`` object, with its
    ``report()``. Raises UserError if the library is missing, and what ``managed`` raises.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise UserError("ForLightning takes Lightning: pip install lightning") from None

    class Managing(Callback):
        """The callback that starts ``managed`` when the training begins, and stops it when the training ends."""

        def __init__(self) -> None:
            self.memory = managed(budget, **options)

        def on_train_start(self, *args: Any, **more: Any) -> None:
            """Start ``memory``, the ``managed`` object, as the training begins."""
            self.memory.start()

        def on_train_end(self, *args: Any, **more: Any) -> None:
            """Stop managing the memory, at the end of the training."""
            self.memory.stop()

        def on_exception(self, *args: Any, **more: Any) -> None:
            """Stop managing the memory, after an error in the training."""
            self.memory.stop()

    return Managing()
