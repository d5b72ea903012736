"""What the program must know of the networks that it can train: where they come from, and what each is made for.

``minidl.models`` is a Zoo. The program itself knows no network by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minidl.nn import Module
from minidl.tensor import Tensor
from minidl.training.metrics import Score


class TextShape(Protocol):
    """Tokens a sequence, and positions predicted in each."""

    @property
    def length(self) -> int:
        """Tokens a sequence."""

    @property
    def predictions(self) -> int:
        """Positions predicted in each."""

    def of_length(self, length: int | None) -> TextShape:
        """The same with sequences of another length, of which as large a part is predicted; None: of this one."""


class Network(Protocol):
    """A network by name; ``minidl.models.Model`` says more of each field."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image, unless the data or a flag says otherwise."""

    @property
    def num_classes(self) -> int:
        """How many classes it tells apart, unless the data or a flag says otherwise."""

    @property
    def pixel_labels(self) -> bool:
        """Whether there is a label a pixel, or one an image."""

    @property
    def text(self) -> TextShape | None:
        """The shape of a text, for a network that reads any: its forward pass returns the loss."""

    @property
    def reads_pairs(self) -> bool:
        """Whether it learns from pairs of sentences."""

    @property
    def loss(self) -> Callable[[Any, Tensor, Tensor], Tensor]:
        """Of the network, images and labels: a scalar."""

    @property
    def text_batch(self) -> Callable[..., Sequence[Tensor]]:
        """Makes a batch of noise of a runtime, a batch size and a TextShape: the forward pass's arguments."""

    @property
    def score(self) -> Callable[[Any, Any], Score | None]:
        """Of the network and a batch of test data: what its predictions are worth."""


class Zoo(Protocol):
    """A collection of networks."""

    def find(self, name: str) -> Network:
        """The network of a name. Raises UserError."""

    def create(self, name: str, *, num_classes: int | None = None, in_channels: int | None = None,
               image_size: int | None = None, vocabulary: int | None = None) -> Module:
        """A new one in the current runtime; what is not given is as its own default has it. Raises UserError."""

    def listing(self) -> str:
        """All names, for people."""

    def classification_loss(self, model: Module, images: Tensor, labels: Tensor, *,
                            label_smoothing: float = 0.0) -> Tensor:
        """The loss of a network with one label an image, the only one whose labels can be smoothed."""

    def load_weights(self, model: Module, path: str) -> None:
        """Overwrite parameters and buffers with those of a file. Raises UserError."""
