"""Callbacks for the trainers of other libraries: a training is managed from its beginning to its end.

Each imports its library when it is made. Accelerate has no callbacks: there ``managed`` is around the loop.
"""

from __future__ import annotations

from typing import Any

from minidl.errors import UserError
from minidl.torch.managed import managed


def ForTransformers(budget: str | int, **options: Any) -> Any:  # noqa: N802 # it stands where a class is expected
    """A ``TrainerCallback`` of Hugging Face: ``Trainer(..., callbacks=[ForTransformers("12GiB")])``.

    budget, options: of ``managed``. The callback's ``memory`` is what manages, with its ``report()``. A training that
    ends with an error does not call it: ``memory.stop()``, or the next training with it, ends the managing. Raises
    UserError where the library is not installed, and what ``managed`` raises.
    """
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise UserError("ForTransformers takes Hugging Face's transformers: pip install transformers") from None

    class Callback(TrainerCallback):
        """Is told of the training."""

        def __init__(self) -> None:
            self.memory = managed(budget, **options)

        def on_train_begin(self, *args: Any, **more: Any) -> None:
            """Manage from here on."""
            self.memory.stop()  # a training before this one may have ended with an error
            self.memory.start()

        def on_train_end(self, *args: Any, **more: Any) -> None:
            """Up to here."""
            self.memory.stop()

    return Callback()


def ForLightning(budget: str | int, **options: Any) -> Any:  # noqa: N802 # it stands where a class is expected
    """A ``Callback`` of Lightning: ``Trainer(..., callbacks=[ForLightning("12GiB")])``.

    budget, options: of ``managed``. The callback's ``memory`` is what manages, with its ``report()``. Raises UserError
    where the library is not installed, and what ``managed`` raises.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise UserError("ForLightning takes Lightning: pip install lightning") from None

    class Managing(Callback):
        """Is told of the training."""

        def __init__(self) -> None:
            self.memory = managed(budget, **options)

        def on_train_start(self, *args: Any, **more: Any) -> None:
            """Manage from here on."""
            self.memory.start()

        def on_train_end(self, *args: Any, **more: Any) -> None:
            """Up to here."""
            self.memory.stop()

        def on_exception(self, *args: Any, **more: Any) -> None:
            """The same, where training ends with an error."""
            self.memory.stop()

    return Managing()
