"""Optimizers: state on the device, updates in place, in groups of parameters."""

from minidl.optim.adam import Adam, AdamW
from minidl.optim.optimizer import CHUNK_BYTES, Optimizer
from minidl.optim.sgd import SGD

__all__ = ["CHUNK_BYTES", "SGD", "Adam", "AdamW", "Optimizer"]
