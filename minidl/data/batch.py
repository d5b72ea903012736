"""A batch on the host: images with labels, pairs of sentences, or running text; or only its shapes, without arrays."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from minidl.meta import float32, int64
from minidl.runtime import Runtime
from minidl.tensor import Tensor

ImageShape = tuple[int, ...]  # [C, H, W]; for text [tokens]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of ``size`` images [C, H, W], float32, and labels, int64; both None if only the shapes matter.

    ``input_shape`` is (C, H, W); ``label_shape`` is () for one class per image, (H, W) for one per pixel.
    """

    size: int
    input_shape: ImageShape
    images: np.ndarray | None = None
    labels: np.ndarray | None = None
    label_shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the images and labels take, or would take if they are None."""
        elements = int(np.prod(self.input_shape)) * 4 + int(np.prod(self.label_shape)) * 8
        return self.size * elements

    def upload(self, runtime: Runtime) -> tuple[Tensor, Tensor]:
        """Upload images [N, C, H, W], in the dtype of activations, and labels [N, *label_shape]: two operations.
        Raises OutOfMemory if the device has no room for them.
        """
        images = runtime.tensor(self.images, shape=(self.size, *self.input_shape),
                                dtype=runtime.precision.activations)
        labels = runtime.tensor(self.labels, shape=(self.size, *self.label_shape), dtype=int64)
        return images, labels

    def split(self, parts: int) -> list["Batch"]:
        """Cut the batch into ``parts`` equal batches, from its first example on; ``parts`` must divide ``size``."""
        return [Batch(self.size // parts, self.input_shape, None if self.images is None else self.images[piece],
                      None if self.labels is None else self.labels[piece], self.label_shape)
                for piece in _pieces(self.size, parts)]


@dataclass(frozen=True, slots=True)
class TextBatch:
    """A batch of inputs of BERT: ``size`` sequences of ``length`` tokens, in each at most ``predictions`` to predict.

    input_ids, token_type_ids and attention_mask (float32: 1 for tokens, 0 for padding) have shape [size, length],
    masked_positions and masked_labels [size, predictions], next_sentence_labels [size] (1: the second segment does not
    follow the first). The others are int64; a label of -100 does not count. All are None if only shapes matter."""

    size: int
    length: int
    predictions: int
    input_ids: np.ndarray | None = None
    token_type_ids: np.ndarray | None = None
    attention_mask: np.ndarray | None = None
    masked_positions: np.ndarray | None = None
    masked_labels: np.ndarray | None = None
    next_sentence_labels: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the arrays take, or would take if they are None."""
        return self.size * (20 * self.length + 16 * self.predictions + 8)

    def upload(self, runtime: Runtime) -> tuple[Tensor, ...]:
        """Upload the six arrays, each by an operation of its own; return the tensors in the order of the fields.
        Raises OutOfMemory if the device has no room for them."""
        tokens, predicted = (self.size, self.length), (self.size, self.predictions)
        shapes = tokens, tokens, tokens, predicted, predicted, (self.size,)
        return tuple(runtime.tensor(array, shape=shape, dtype=float32 if name == "attention_mask" else int64)
                     for (name, array), shape in zip(self._arrays(), shapes, strict=True))

    def split(self, parts: int) -> list["TextBatch"]:
        """Cut the batch into ``parts`` equal batches, from its first example on; ``parts`` must divide ``size``."""
        return [TextBatch(self.size // parts, self.length, self.predictions,
                          **{name: None if array is None else array[piece] for name, array in self._arrays()})
                for piece in _pieces(self.size, parts)]

    def _arrays(self) -> Iterator[tuple[str, np.ndarray | None]]:
        return ((field.name, getattr(self, field.name)) for field in fields(self)[3:])


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A batch of ``size`` sequences of ``length`` tokens, and the token after each: int64 arrays [size, length].
    The arrays are None if only the shapes matter."""

    size: int
    length: int
    input_ids: np.ndarray | None = None
    labels: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the arrays take, or would take if they are None."""
        return self.size * self.length * 16

    def upload(self, runtime: Runtime) -> tuple[Tensor, ...]:
        """Upload and return ``input_ids`` and ``labels``, by two operations. Raises OutOfMemory if they do not fit."""
        return tuple(runtime.tensor(array, shape=(self.size, self.length), dtype=int64)
                     for array in (self.input_ids, self.labels))

    def split(self, parts: int) -> list["TokenBatch"]:
        """Cut the batch into ``parts`` equal batches, from its first example on; ``parts`` must divide ``size``."""
        return [TokenBatch(self.size // parts, self.length, None if self.input_ids is None else self.input_ids[piece],
                           None if self.labels is None else self.labels[piece]) for piece in _pieces(self.size, parts)]


AnyBatch = Batch | TextBatch | TokenBatch


def _pieces(size: int, parts: int) -> list[slice]:
    part = size // parts
    assert part * parts == size, f"a batch of {size} has no {parts} equal parts"
    return [slice(n * part, (n + 1) * part) for n in range(parts)]
