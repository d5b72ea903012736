"""Layers and the modules that hold them, with the names and the argument order of torch.nn."""

from minidl.nn import init
from minidl.nn.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    CrossEntropyLoss,
    Dropout,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Tanh,
)
from minidl.nn.module import Module, ModuleList, Sequential
from minidl.runtime import parameter

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "Conv2d", "CrossEntropyLoss", "Dropout", "Flatten", "Identity",
    "Linear", "MaxPool2d", "Module", "ModuleList", "ReLU", "Sequential", "Sigmoid", "Tanh", "init", "parameter",
]
