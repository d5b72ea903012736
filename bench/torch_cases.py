"""The training steps of ``bench/cpu_cases`` in PyTorch, eager."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench.cpu_cases import BATCH, LEARNING_RATE, Case, images
from bench.support.torch_networks import IMAGES, TEXT, Bert, tokens_of
from minidl.models.text import Text


def training_step(case: Case, batch: int = BATCH) -> Callable[[], float]:
    """Return a function that carries out one training step: forward, backward, optimizer; it returns the loss."""
    torch.manual_seed(0)
    parameters: Any
    compute: Callable[[], torch.Tensor]
    if case.text:
        text = Text(length=case.size)
        bert, tokens = Bert(*TEXT[case.name], text), tokens_of(batch, text)
        parameters, compute = bert.parameters(), lambda: bert(*tokens)
    else:
        data = images(case, batch)
        values, labels = torch.from_numpy(data.values), torch.from_numpy(data.labels)
        model = IMAGES[case.name]()
        parameters, compute = model.parameters(), lambda: F.cross_entropy(model(values), labels)
    optimizer: torch.optim.Optimizer = (torch.optim.Adam(parameters, lr=LEARNING_RATE) if case.text
                                        else torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9))

    def step() -> float:
        optimizer.zero_grad()
        loss = compute()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step
