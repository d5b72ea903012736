"""Layers and the modules that hold them, with the names and the argument order of torch.nn."""

from minidl.nn import init
from minidl.nn.attention import MultiHeadAttention, attend, causal_mask
from minidl.nn.layers import (
    GELU,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    BatchNormReLU2d,
    Conv2d,
    ConvTranspose2d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
)
from minidl.nn.module import Module, ModuleList, Sequential
from minidl.runtime import parameter

__all__ = [
    "GELU", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "BatchNormReLU2d", "Conv2d", "ConvTranspose2d",
    "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear", "MaxPool2d", "Module",
    "ModuleList", "MultiHeadAttention", "ReLU", "Sequential", "Sigmoid", "Softmax", "Tanh", "attend", "causal_mask",
    "init", "parameter",
]
