"""Batches of images to train on: synthetic ones, and scikit-learn's handwritten digits.

A data set has ``input_shape`` (C, H, W), ``num_classes``, ``train_size`` (None: endless), ``batches(batch, seed=...)``
without end, and ``test_batches(batch)``.
"""

from minidl.data.batch import Batch
from minidl.data.digits import Digits
from minidl.data.synthetic import Synthetic

Data = Synthetic | Digits

__all__ = ["Batch", "Data", "Digits", "Synthetic"]
