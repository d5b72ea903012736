"""24 small networks of torchvision, timm and Hugging Face, and two of our own, as training programs.

Each is made from its configuration, with weights drawn anew: nothing is downloaded. A maker imports its library itself,
so that each network is there where its own library is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.support.torch_programs import Program

WORDS = 200  # of each language model


def _images(network: nn.Module, side: int, n: int) -> Program:
    x, y = torch.randn(n, 3, side, side), torch.randint(0, 10, (n,))
    return Program(network, torch.optim.SGD(network.parameters(), 0.01, momentum=0.9),
                   lambda: F.cross_entropy(network(x), y))


def _torchvision(path: str, side: int = 64, n: int = 8, **options: Any) -> Callable[[], Program]:
    """Return a maker of a network of torchvision, given by the dotted name of its function."""
    def make() -> Program:
        where, _, name = path.rpartition(".")
        module = import_module(f"torchvision.models{where and '.'}{where}")
        return _images(getattr(module, name)(num_classes=10, **options), side, n)
    make.library = "torchvision"  # type: ignore[attr-defined]
    return make


def _timm(name: str, side: int, n: int = 6, **options: Any) -> Callable[[], Program]:
    """Return a maker of a network of timm by its name, with dropout before its head."""
    def make() -> Program:
        network = import_module("timm").create_model(name, num_classes=10, drop_rate=0.1, **options)
        program = _images(network, side, n)
        program.optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
        return program
    make.library = "timm"  # type: ignore[attr-defined]
    return make


def _transformers(model: str, config: str, length: int = 48, **options: Any) -> Callable[[], Program]:
    """Return a maker of a language model of Hugging Face, by the names of its two classes."""
    def make() -> Program:
        library = import_module("transformers")
        network = getattr(library, model)(getattr(library, config)(vocab_size=WORDS, **options))
        network.train()
        x = torch.randint(0, WORDS, (6, length))
        return Program(network, torch.optim.AdamW(network.parameters(), 1e-3),
                       lambda: network(input_ids=x, labels=x).loss)
    make.library = "transformers"  # type: ignore[attr-defined]
    return make


class UNet(nn.Module):
    """A U-Net of two levels with batch norm and ReLU in place; the way up takes in what the way down has kept."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._twice(3, width), self._twice(width, 2 * width)])
        self.middle = self._twice(2 * width, 4 * width)
        self.widen = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                                    nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.up = nn.ModuleList([self._twice(4 * width, 2 * width), self._twice(2 * width, width)])
        self.head = nn.Conv2d(width, 3, 1)

    @staticmethod
    def _twice(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 3, h, w] -> [n, 3, h, w], scores of three classes."""
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for widen, level in zip(self.widen, self.up, strict=True):
            x = level(torch.cat([kept.pop(), widen(x)], 1))
        y: torch.Tensor = self.head(x)
        return y


def unet() -> Program:
    """A U-Net on images of 64 x 64."""
    network = UNet()
    x, y = torch.randn(3, 3, 64, 64), torch.randint(0, 3, (3, 64, 64))
    return Program(network, torch.optim.Adam(network.parameters(), 1e-3), lambda: F.cross_entropy(network(x), y))


def lstm() -> Program:
    """A language model on two layers of LSTM, with dropout."""
    network = nn.ModuleDict({
        "words": nn.Embedding(WORDS, 64), "cells": nn.LSTM(64, 64, 2, batch_first=True, dropout=0.2),
        "drop": nn.Dropout(0.2), "head": nn.Linear(64, WORDS)})
    x = torch.randint(0, WORDS, (16, 32))

    def loss() -> torch.Tensor:
        states = network["cells"](network["words"](x))[0]
        return F.cross_entropy(network["head"](network["drop"](states)).flatten(0, 1), x.flatten())

    return Program(network, torch.optim.Adam(network.parameters(), 1e-3), loss)


def resnet18() -> Program:
    """torchvision's, without its last stage, which has most of the parameters."""
    network = import_module("torchvision").models.resnet18(num_classes=10)
    network.layer4, network.fc = nn.Identity(), nn.Linear(256, 10)
    return _images(network, 96, 8)


resnet18.library = "torchvision"  # type: ignore[attr-defined]
_HEADS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128}
ZOO: dict[str, Callable[[], Program]] = {
    "unet": unet,
    "lstm": lstm,
    "resnet18": resnet18,
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small", 96, 16),
    "densenet": _torchvision("densenet.DenseNet", growth_rate=8, block_config=(3, 3, 3), num_init_features=16,
                             drop_rate=0.1),
    "squeezenet1_1": _torchvision("squeezenet1_1", 96),
    "shufflenet_v2_x0_5": _torchvision("shufflenet_v2_x0_5", 96, 16),
    "regnet_y_400mf": _torchvision("regnet_y_400mf", 96, 16),
    "swin": _torchvision("swin_transformer.SwinTransformer", patch_size=[4, 4], embed_dim=32, depths=[2, 2],
                         num_heads=[2, 4], window_size=[4, 4], stochastic_depth_prob=0.2),
    "vision_transformer": _torchvision("vision_transformer.VisionTransformer", image_size=64, patch_size=8,
                                       num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128, dropout=0.1),
    "timm resnet": _timm("test_resnet", 96),
    "timm efficientnet": _timm("test_efficientnet", 96, drop_path_rate=0.2),
    "timm byobnet": _timm("test_byobnet", 96),
    "timm nfnet": _timm("test_nfnet", 96),
    "timm convnext": _timm("test_convnext", 96, drop_path_rate=0.1),
    "timm vit": _timm("test_vit", 160),
    "gpt2": _transformers("GPT2LMHeadModel", "GPT2Config", n_layer=3, n_head=4, n_embd=64, n_positions=64),
    "llama": _transformers("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **_HEADS),
    "bert": _transformers("BertForMaskedLM", "BertConfig", **_HEADS),
    "t5": _transformers("T5ForConditionalGeneration", "T5Config", 32, num_layers=2, d_model=64, d_ff=128, d_kv=16,
                        num_heads=4, decoder_start_token_id=0),
    "opt": _transformers("OPTForCausalLM", "OPTConfig", num_hidden_layers=2, num_attention_heads=4, hidden_size=64,
                         ffn_dim=128, max_position_embeddings=64, word_embed_proj_dim=64),
    "mamba": _transformers("MambaForCausalLM", "MambaConfig", 24, num_hidden_layers=2, hidden_size=48),
    "mixtral": _transformers("MixtralForCausalLM", "MixtralConfig", 32, num_key_value_heads=2, num_local_experts=4,
                             **_HEADS),
    "albert": _transformers("AlbertForMaskedLM", "AlbertConfig", embedding_size=32, **_HEADS),
}


def library_of(name: str) -> str:
    """Return the library that a network needs beside PyTorch; empty if none."""
    return str(getattr(ZOO[name], "library", ""))
