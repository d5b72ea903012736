"""A batch: images with their labels on the host, or only their shapes. Knows no data set and no model."""

from dataclasses import dataclass

import numpy as np

from minidl.meta import float32, int64
from minidl.runtime import Runtime
from minidl.tensor import Tensor

ImageShape = tuple[int, ...]  # [C, H, W]; of text, [tokens]


@dataclass(frozen=True, slots=True)
class Batch:
    """``size`` images [C, H, W], float32, and labels, int64; the arrays are None where values do not matter."""

    size: int
    input_shape: ImageShape
    images: np.ndarray | None = None
    labels: np.ndarray | None = None

    def upload(self, runtime: Runtime) -> tuple[Tensor, Tensor]:
        """Images [N, C, H, W] and labels [N] on the device: two operations. Raises OutOfMemory."""
        images = runtime.tensor(self.images, shape=(self.size, *self.input_shape), dtype=float32)
        labels = runtime.tensor(self.labels, shape=(self.size,), dtype=int64)
        return images, labels
