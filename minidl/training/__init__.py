"""What a training consists of: the step, the scores, and a watch for the first value that is no number."""

from minidl.training.anomaly import detect_anomaly
from minidl.training.trainer import Trainer

__all__ = ["Trainer", "detect_anomaly"]
