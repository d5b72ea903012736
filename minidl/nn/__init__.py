"""Layers and the modules that hold them, with the names and the argument order of torch.nn."""

from minidl.nn import functional, init, utils
from minidl.nn.activations import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from minidl.nn.attention import Causal, MultiHeadAttention, attend, causal_mask
from minidl.nn.containers import ModuleDict, ModuleList, Sequential
from minidl.nn.groupnorm import GroupNorm
from minidl.nn.images import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    BatchNormReLU2d,
    Conv2d,
    ConvReLU2d,
    ConvTranspose2d,
    MaxPool2d,
)
from minidl.nn.layers import Dropout, Embedding, Flatten, Identity, LayerNorm, Linear
from minidl.nn.losses import BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from minidl.nn.module import Module
from minidl.nn.parameters import Parameter
from minidl.nn.precision import lowered
from minidl.nn.recurrent import GRU, LSTM
from minidl.runtime import parameter

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d",
    "BatchNormReLU2d", "Causal", "Conv2d", "ConvReLU2d", "ConvTranspose2d", "CrossEntropyLoss", "Dropout",
    "Embedding", "Flatten", "GELU", "GRU", "GroupNorm", "Identity", "L1Loss", "LSTM", "LayerNorm", "Linear",
    "LogSoftmax", "MSELoss", "MaxPool2d", "Module", "ModuleDict", "ModuleList", "MultiHeadAttention", "NLLLoss",
    "Parameter", "ReLU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Tanh", "attend", "causal_mask", "functional",
    "init", "lowered", "parameter", "utils",
]
