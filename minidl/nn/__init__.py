"""Layers and the modules that hold them, with the names and the argument order of torch.nn."""

from minidl.nn import init
from minidl.nn.activations import GELU, ReLU, Sigmoid, Softmax, Tanh
from minidl.nn.attention import Causal, MultiHeadAttention, attend, causal_mask
from minidl.nn.images import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    BatchNormReLU2d,
    Conv2d,
    ConvReLU2d,
    ConvTranspose2d,
    MaxPool2d,
)
from minidl.nn.layers import CrossEntropyLoss, Dropout, Embedding, Flatten, Identity, LayerNorm, Linear
from minidl.nn.module import Module, ModuleList, Sequential
from minidl.nn.precision import lowered
from minidl.runtime import parameter

__all__ = [
    "GELU", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "BatchNormReLU2d", "Causal", "Conv2d", "ConvReLU2d",
    "ConvTranspose2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear",
    "MaxPool2d", "Module", "ModuleList", "MultiHeadAttention", "ReLU", "Sequential", "Sigmoid", "Softmax", "Tanh",
    "attend", "causal_mask", "init", "lowered", "parameter",
]
