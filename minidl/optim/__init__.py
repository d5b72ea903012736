"""Optimizers with state on the device and in-place updates; learning-rate schedules; gradient clipping."""

from minidl.optim import lr_scheduler
from minidl.optim.adadelta import Adadelta
from minidl.optim.adam import Adam, AdamW
from minidl.optim.clip import clip_global_norm
from minidl.optim.composed import Adagrad, RMSprop
from minidl.optim.optimizer import CHUNK_BYTES, Optimizer
from minidl.optim.schedule import ENDING_SHAPES, SHAPES, Schedule
from minidl.optim.sgd import SGD

__all__ = ["CHUNK_BYTES", "ENDING_SHAPES", "SGD", "SHAPES", "Adadelta", "Adagrad", "Adam", "AdamW", "Optimizer",
           "RMSprop", "Schedule", "clip_global_norm", "lr_scheduler"]
