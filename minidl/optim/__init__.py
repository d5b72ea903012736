"""Optimizers with state on the device and in-place updates; learning-rate schedules; gradient clipping."""

from minidl.optim import lr_scheduler
from minidl.optim.adadelta import Adadelta
from minidl.optim.adam import Adam, AdamW
from minidl.optim.clip import clip_global_norm
from minidl.optim.composed import Adagrad, RMSprop
from minidl.optim.lbfgs import LBFGS
from minidl.optim.optimizer import CHUNK_BYTES, Optimizer
from minidl.optim.schedule import ENDING_SHAPES, SHAPES, Schedule
from minidl.optim.sgd import SGD

__all__ = [
    "Adadelta", "Adagrad", "Adam", "AdamW", "CHUNK_BYTES", "ENDING_SHAPES", "LBFGS", "Optimizer", "RMSprop", "SGD",
    "SHAPES", "Schedule", "clip_global_norm", "lr_scheduler",
]
