"""The parts of a training: the training step, scores on test data, and the detection of NaN."""

from minidl.training.anomaly import detect_anomaly
from minidl.training.trainer import Trainer

__all__ = ["Trainer", "detect_anomaly"]
