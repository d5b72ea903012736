"""The parts of a training: the step, the scores, and a watch for the first value that is not finite."""

from minidl.training.anomaly import detect_anomaly
from minidl.training.trainer import Trainer

__all__ = ["Trainer", "detect_anomaly"]
