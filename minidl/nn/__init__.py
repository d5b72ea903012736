"""Layers and the modules that hold them, with the names and the argument order of torch.nn."""

from minidl.nn import functional, init, lora, utils
from minidl.nn.activations import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from minidl.nn.attention import Causal, MultiHeadAttention, attend, causal_mask
from minidl.nn.cells import GRUCell, LSTMCell, RNNCell
from minidl.nn.containers import ModuleDict, ModuleList, Sequential
from minidl.nn.more_layers import GroupNorm
from minidl.nn.images import (
    AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, BatchNorm1d, BatchNorm2d, BatchNormReLU2d, Conv1d, Conv2d, ConvReLU2d,
    ConvTranspose2d, MaxPool1d, MaxPool2d,
)
from minidl.nn.layers import Dropout, Embedding, Flatten, Identity, LayerNorm, Linear
from minidl.nn.losses import BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from minidl.nn.module import Module
from minidl.nn.more_activations import (
    CELU, ELU, GLU, SELU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, Mish, PReLU, ReLU6,
    Softmin, Softplus, Softshrink, Softsign, Tanhshrink, Threshold,
)
from minidl.nn.more_layers import (
    CircularPad2d, ConstantPad2d, CosineSimilarity, Dropout1d, Dropout2d, HuberLoss, InstanceNorm1d, InstanceNorm2d,
    KLDivLoss, ParameterList, PixelShuffle, ReflectionPad1d, ReflectionPad2d, ReplicationPad1d, ReplicationPad2d,
    RMSNorm, SmoothL1Loss, Unflatten, Upsample, ZeroPad2d,
)
from minidl.nn.parameters import Parameter
from minidl.nn.precision import lowered
from minidl.nn.recurrent import GRU, LSTM, RNN
from minidl.nn.transformer import (
    MultiheadAttention, Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer,
)
from minidl.runtime import parameter

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d",
    "BatchNormReLU2d", "CELU", "Causal", "CircularPad2d", "ConstantPad2d", "Conv1d", "Conv2d", "ConvReLU2d",
    "ConvTranspose2d", "CosineSimilarity", "CrossEntropyLoss", "Dropout", "Dropout1d", "Dropout2d", "ELU",
    "Embedding", "Flatten", "GELU", "GLU", "GRU", "GRUCell", "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish",
    "Hardtanh", "HuberLoss", "Identity", "InstanceNorm1d", "InstanceNorm2d", "KLDivLoss", "L1Loss", "LSTM",
    "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d",
    "Mish", "Module", "ModuleDict", "ModuleList", "MultiHeadAttention", "MultiheadAttention", "NLLLoss", "PReLU",
    "Parameter", "ParameterList", "PixelShuffle", "RMSNorm", "RNN", "RNNCell", "ReLU", "ReLU6", "ReflectionPad1d",
    "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "SELU", "Sequential", "SiLU", "Sigmoid",
    "SmoothL1Loss", "Softmax", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
    "Unflatten", "Upsample", "ZeroPad2d", "attend", "causal_mask", "functional", "init", "lora", "lowered", "parameter",
    "utils",
]
