"""Programs whose data, parameters and buffers are unusual, in the form of ``torch_awkward``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset
from torch_awkward import STEPS, Tensors, _data, _network, _simple, _trained, _usual


def negative_and_conjugate_bits() -> Tensors:
    """Views whose values are to be read with the other sign, or conjugate, are what is saved."""
    def step(network, x, optimizer):
        z = torch.fft.fft(network(x))
        part = torch._neg_view(z.real) * torch.view_as_real(z.conj().resolve_conj())[..., 1]
        turned = z.conj() * z.mT.conj().mT.exp()
        loss = (part * z.conj().imag).pow(2).mean() * 1e-4 + turned.abs().log1p().mean()
        loss.backward()
        return loss
    return _simple(step)


def spectral_norm() -> Tensors:
    """A parametrisation that writes buffers in place in each forward pass."""
    network, x = nn.Sequential(parametrizations.spectral_norm(nn.Linear(48, 48)), nn.Tanh(),
                               parametrizations.weight_norm(nn.Linear(48, 48))), _data()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return _usual(network, optimizer, lambda: network(x).pow(2).mean() + network(x.sin()).mean())


def words_of_bounded_norm() -> Tensors:
    """The embedding's forward pass writes its own weight in place."""
    network = nn.ModuleDict({"words": nn.Embedding(120, 48, max_norm=1.0), "head": nn.Linear(48, 120)})
    x = torch.randint(0, 120, (16, 8))
    optimizer = torch.optim.SGD(network.parameters(), 0.5)
    return _usual(network, optimizer, lambda: F.cross_entropy(
        network["head"](network["words"](x).sin()).flatten(0, 1), x.flatten()))


def writes_to_views() -> Tensors:
    """Slices and transposes of one tensor are written in place, between saves of others of its views."""
    def step(network, x, optimizer):
        y = network(x).clone()
        y[:, :16].mul_(2).add_(1)
        z = y.view(32, 6, 8)
        z[:, 1:3] = z[:, 3:5].clone().sin()
        y.t()[20:30].sigmoid_()
        u = z.transpose(0, 1).reshape(6, -1)
        u[0].tanh_()
        loss = u.pow(2).mean() + y.expand(2, 32, 48).sin().mean()
        loss.backward()
        return loss
    return _simple(step)


def packed_sequences() -> Tensors:
    network = nn.ModuleDict({"cells": nn.GRU(48, 48, 2, bidirectional=True, dropout=0.1), "head": nn.Linear(96, 4)})
    x = torch.randn(20, 6, 48)
    optimizer = torch.optim.RMSprop(network.parameters(), 1e-3)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([20, 17, 9, 5, 2, 1]))
            out, _ = nn.utils.rnn.pad_packed_sequence(network["cells"](packed)[0])
            loss = network["head"](out).pow(2).mean()
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


def loaders_with_workers() -> Tensors:
    network, x = _network(), torch.randn(96, 48)
    loader = DataLoader(TensorDataset(x), 32, shuffle=True, num_workers=1, generator=torch.Generator().manual_seed(3),
                        multiprocessing_context="spawn", persistent_workers=True)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for _ in range(2):
            for batch, in loader:
                optimizer.zero_grad()
                loss = network(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                yield loss
    return _trained(network, optimizer, steps)


def states_that_are_loaded_again() -> Tensors:
    """A copy of the network and of its optimizer is kept, and both go back to it."""
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2, amsgrad=True)

    def steps() -> Iterator[Any]:
        kept: Any = None
        for n in range(7):
            optimizer.zero_grad()
            loss = network(x).pow(2).mean()
            kept = (copy.deepcopy(network.state_dict()), copy.deepcopy(optimizer.state_dict())) if n == 3 else kept
            loss.backward()
            optimizer.step()
            if n == 5:
                network.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
            yield loss
    return _trained(network, optimizer, steps)


def generators_of_ones_own() -> Tensors:
    own = torch.Generator().manual_seed(5)

    def step(network, x, optimizer):
        y = network[:3](x)
        noise = torch.empty_like(y).normal_(generator=own)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            y = F.dropout(y * noise.exp(), 0.5)
        keep = torch.bernoulli(torch.full_like(y, 0.5), generator=own)
        loss = (network[3:](y) * keep).pow(2).mean()
        loss.backward()
        return torch.cat([loss.reshape(1), torch.rand(2, generator=own)])
    return _simple(step)


def memory_formats() -> Tensors:
    """Convolutions in channels-last order, transposed weights, strides of zero, grids and folds."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 8, 3, 2, 1),
                            nn.InstanceNorm2d(8, affine=True), nn.Hardswish(True), nn.ConvTranspose2d(8, 3, 2, 2))
    network = network.to(memory_format=torch.channels_last)
    x = torch.randn(3, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.NAdam(network.parameters(), 1e-3)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            y = network(x)
            grid = F.affine_grid(torch.eye(2, 3).expand(3, 2, 3) + y.mean() * 0.01, [3, 3, 16, 16], align_corners=False)
            z = F.fold(F.unfold(F.grid_sample(y, grid, align_corners=False), 4, stride=4), 16, 4, stride=4)
            loss = (z * z[:1].expand(3, 3, 16, 16)).mean() + F.interpolate(z, None, 2.0, "bilinear").pow(2).mean()
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


def distributions() -> Tensors:
    """A variational autoencoder: draws that gradients go through, from distributions that are hard to draw from."""
    def step(network, x, optimizer):
        y = network(x)
        normal = torch.distributions.Normal(y, F.softplus(y) + 0.1)
        gamma = torch.distributions.Gamma(F.softplus(y[:8]) + 0.5, 1.0)
        z = normal.rsample()
        loss = (-normal.log_prob(z).mean() + gamma.rsample().mean()
                + torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).mean()
                + F.gumbel_softmax(y, hard=True).pow(2).mean())
        loss.backward()
        return loss
    return _simple(step)


def several_types_of_numbers() -> Tensors:
    """float64, bfloat16, complex and float32 parameters in one graph, and integers among what is saved."""
    network = nn.ParameterDict({
        "long": torch.randn(48, 48, dtype=torch.float64), "short": torch.randn(48, 48, dtype=torch.bfloat16),
        "paired": torch.randn(48, 48, dtype=torch.complex64), "single": torch.randn(48, 48)})
    x = _data()
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, momentum=0.9)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            y = ((x.double() @ network["long"]).bfloat16() @ network["short"]).float().tanh()
            z = (y.to(torch.complex64) @ network["paired"]).abs() @ network["single"]
            top = z.topk(24, 1)
            loss = torch.gather(z.softmax(1), 1, top.indices).log().mean() + top.values.logsumexp(1).mean() * 1e-2
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


DATA: dict[str, Callable[[], Tensors]] = {f.__name__: f for f in (
    negative_and_conjugate_bits, spectral_norm, words_of_bounded_norm, writes_to_views, packed_sequences,
    loaders_with_workers, states_that_are_loaded_again, generators_of_ones_own, memory_formats, distributions,
    several_types_of_numbers)}
