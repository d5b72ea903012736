"""PyTorch programs with unusual graphs: each trains a few steps, and returns all that it computed.

Each is a function without arguments; it is run with and without ``minidl.torch``, from the same seed.
"""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

Tensors = list[torch.Tensor]
STEPS = 4


def _network(width: int = 48, dropout: float = 0.1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, width), nn.Tanh(),
                         nn.LayerNorm(width), nn.Linear(width, width))


def _data(width: int = 48) -> torch.Tensor:
    return torch.randn(32, width)


def _trained(network: nn.Module, optimizer: torch.optim.Optimizer, steps: Callable[[], Iterator[Any]]) -> Tensors:
    found = [t.detach().clone() for t in steps() if isinstance(t, torch.Tensor)]
    return [*found, *(t.detach().clone() for t in network.state_dict().values()), torch.get_rng_state()]


def _usual(network: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> Tensors:
    """Train by the usual loop, with the loss of each step."""
    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


def _simple(step: Callable[[nn.Module, torch.Tensor, torch.optim.Optimizer], Any]) -> Tensors:
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            yield step(network, x, optimizer)
            optimizer.step()
    return _trained(network, optimizer, steps)


def graph_that_is_retained() -> Tensors:
    def step(network, x, optimizer):
        loss = network(x).pow(2).mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss
    return _simple(step)


def hessian_vector_product() -> Tensors:
    def step(network, x, optimizer):
        loss = network(x).pow(2).mean()
        grads = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
        product = sum((g * g.detach()).sum() for g in grads)
        (loss + product).backward()
        return product
    return _simple(step)


def hooks_everywhere() -> Tensors:
    def step(network, x, optimizer):
        seen = []
        handles = [network[1].register_full_backward_hook(lambda m, i, o: seen.append(o[0].sum())),
                   network[3].register_forward_hook(lambda m, i, o: o * 1.5)]
        y = network(x)
        y.retain_grad()
        y.register_hook(lambda g: g * 2)
        y.pow(2).mean().backward()
        for handle in handles:
            handle.remove()
        return torch.cat([y.grad.reshape(-1), torch.stack(seen)])
    return _simple(step)


def gradients_accumulated() -> Tensors:
    def step(network, x, optimizer):
        losses = [network(part).pow(2).mean() for part in ()]
        for part in x.split(8):
            loss = network(part).pow(2).mean() / 4
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses)
    return _simple(step)


def mixed_precision() -> Tensors:
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = network(x).float().pow(2).mean()
                scaler.scale(loss).backward()  # in autocast, which replays must not see
            scaler.step(optimizer)
            scaler.update()
            yield loss
    return _trained(network, optimizer, steps)


def backward_in_lower_precision() -> Tensors:
    """Forward in full precision, backward under autocast."""
    def step(network, x, optimizer):
        loss = network(x * 1.5).pow(2).mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss.backward()
        return loss
    return _simple(step)


def _checkpointed(reentrant: bool) -> Tensors:
    def step(network, x, optimizer):
        x = x.clone().requires_grad_()
        y = checkpoint(network[:4], x, use_reentrant=reentrant)
        loss = network[4:](y).pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


def checkpoints() -> Tensors:
    return _checkpointed(False)


def reentrant_checkpoints() -> Tensors:
    return _checkpointed(True)


def optimizer_that_computes_the_loss_itself() -> Tensors:
    network, x = _network(dropout=0.0), _data()
    optimizer = torch.optim.LBFGS(network.parameters(), 0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = network(x).pow(2).mean()
        loss.backward()
        return loss
    return _trained(network, optimizer, lambda: (optimizer.step(closure) for _ in range(STEPS)))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.beside = x * 2
        return x * x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return ctx.beside * g + 0 * x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def functions_of_ones_own() -> Tensors:
    def step(network, x, optimizer):
        y = Doubled.apply(network(x) * 1.0)
        loss = Squared.apply(y.sin()).mean()
        loss.backward()
        return loss
    return _simple(step)


def backward_in_another_thread() -> Tensors:
    def step(network, x, optimizer):
        loss = network(x).pow(2).mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return loss
    return _simple(step)


def forward_in_another_thread() -> Tensors:
    def step(network, x, optimizer):
        found = []
        thread = threading.Thread(target=lambda: found.append(network(x).pow(2).mean()))
        thread.start()
        thread.join()
        found[0].backward()
        return found[0]
    return _simple(step)


class Interrupted(Exception):
    pass


def interrupted_steps() -> Tensors:
    def step(network, x, optimizer):
        def stop(gradient):
            raise Interrupted
        y = network[:4](x)
        y.register_hook(stop)
        try:
            network[4:](y).sum().backward()
        except Interrupted:
            optimizer.zero_grad()
        try:
            network(x)
            raise Interrupted
        except Interrupted:
            pass
        loss = network(x).pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


def optimizer_within_backward() -> Tensors:
    network, x = _network(), _data()
    optimizers = {p: torch.optim.SGD([p], 0.05, momentum=0.9) for p in network.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            loss = network(x).pow(2).mean()
            loss.backward()
            yield loss
    return _trained(network, next(iter(optimizers.values())), steps)


def two_optimizers_in_turn() -> Tensors:
    one, two, x = _network(), _network(), _data()
    first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.Adam(two.parameters(), 1e-3)

    def steps() -> Iterator[Any]:
        for _ in range(2 * STEPS):
            for optimizer, loss in ((first, lambda: two(one(x)).pow(2).mean()),
                                    (second, lambda: -two(one(x).detach()[:16]).pow(2).mean())):
                one.zero_grad()
                two.zero_grad()
                value = loss()
                value.backward()
                optimizer.step()
                yield value
    return _trained(nn.ModuleList([one, two]), first, steps)


def batches_of_changing_sizes() -> Tensors:
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for size in (32, 32, 32, 24, 32, 24, 32, 24, 17, 32, 24):
            optimizer.zero_grad()
            loss = network(x[:size]).pow(2).mean()
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


def steps_that_end_otherwise() -> Tensors:
    """From the third step on, steps begin like the second and then differ."""
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for n in range(6):
            optimizer.zero_grad()
            y = network(x)
            if n >= 2:
                y = network(y.sigmoid()) if n % 2 else network[:n](y.exp().log())
            loss = y.pow(2).mean()
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


def evaluation_in_between() -> Tensors:
    def step(network, x, optimizer):
        network.eval()
        with torch.no_grad():
            before = network(x).sum()
        with torch.inference_mode():
            network(x).sum()
        network.train()
        network(x).sum()  # with gradients that are never computed
        loss = network(x).pow(2).mean()
        loss.backward()
        return torch.stack([before, loss])
    return _simple(step)


def reseeded_between_forward_and_backward() -> Tensors:
    def step(network, x, optimizer):
        y = network(x)
        torch.manual_seed(7)
        noise = torch.randn(4)
        y.register_hook(lambda g: g + 0.01 * torch.rand_like(g))
        y.pow(2).mean().backward()
        return torch.cat([noise, torch.randn(4)])
    return _simple(step)


def parameters_written_through_data() -> Tensors:
    """Write between forward and backward, unseen by PyTorch's version counter."""
    def step(network, x, optimizer):
        y = network(x).sin()
        with torch.no_grad():
            network[0].weight.data.mul_(0.5)
            network[0].bias.data.add_(1.0)
        y.pow(2).mean().backward()
        return y
    return _simple(step)


def activations_written_through_data() -> Tensors:
    def step(network, x, optimizer):
        y = network(x)
        z = (y * 1.5).sin()
        y.data.mul_(2.0)
        u = network(z)
        v = (u * 1.5).sin()
        v.register_hook(lambda g: (u.data.mul_(2.0), g)[1])  # in the midst of the backward pass
        (v.pow(2).mean() + z.mean()).backward()
        return z
    return _simple(step)


def buffers_that_forward_writes() -> Tensors:
    network, x = _network(), _data()
    network.register_buffer("mean", torch.zeros(32, 48))
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            y = network(x)
            z = y * network.mean.clone().exp()
            network.mean.mul_(0.9).add_(y.detach(), alpha=0.1)
            loss = (z * network.mean.clone().sin()).tanh().pow(2).mean()
            network.mean.mul_(1.01)
            loss.backward()
            optimizer.step()
            yield loss
    return _trained(network, optimizer, steps)


def read_past_the_dispatcher() -> Tensors:
    def step(network, x, optimizer):
        y = network[:4](x)
        array, exchanged = y.detach().numpy(), torch.from_dlpack(y.detach())
        loss = network[4:](y).pow(2).mean()
        kept = io.BytesIO()
        torch.save({"y": y.detach(), "network": network.state_dict()}, kept)
        copied = copy.deepcopy(y.detach())
        loss.backward()
        kept.seek(0)
        return torch.stack([torch.from_numpy(array).sum(), exchanged.sum(), copied.sum(),
                            torch.load(kept, weights_only=True)["y"].sum()])
    return _simple(step)


def saved_tensors_that_are_looked_at() -> Tensors:
    def step(network, x, optimizer):
        y = network(x).exp()
        seen = y.grad_fn._saved_result.sum() + y.grad_fn._saved_result.mean()
        y.mean().backward()
        return seen
    return _simple(step)


def hooks_of_ones_own_inside() -> Tensors:
    def step(network, x, optimizer):
        with torch.autograd.graph.save_on_cpu():
            y = network[:4](x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            y = y.exp()
        loss = network[4:](y).pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


def modes_across_steps() -> Tensors:
    """A dispatch mode is entered before one step ends and left after another has begun."""
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    counted: list[int] = []

    def train() -> torch.Tensor:
        optimizer.zero_grad()
        loss = network(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    def steps() -> Iterator[Any]:
        for _ in range(3):
            yield train()
            with FlopCounterMode(display=False) as counter:
                yield train()
                yield train()
            counted.append(counter.get_total_flops())
            yield train()
        yield torch.tensor(counted)
    return _trained(network, optimizer, steps)


def sparse_gradients() -> Tensors:
    network = nn.ModuleDict({"words": nn.Embedding(300, 48, sparse=True), "head": nn.Linear(48, 300)})
    x = torch.randint(0, 300, (16, 8))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return _usual(network, optimizer, lambda: F.cross_entropy(
        network["head"](network["words"](x).sin()).flatten(0, 1), x.flatten()))


def ragged_batches() -> Tensors:
    def step(network, x, optimizer):
        nested = torch.nested.nested_tensor([x[:10], x[10:]], layout=torch.jagged)
        loss = network[0](nested).sin().values().pow(2).mean() + network(x).mean()
        loss.backward()
        return loss
    return _simple(step)


def gradients_kept_and_clipped() -> Tensors:
    network, x = _network(), _data()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            loss = network(x).pow(2).mean()
            loss.backward()
            yield nn.utils.clip_grad_norm_(network.parameters(), 0.1)
            optimizer.step()
            schedule.step()
    return _trained(network, optimizer, steps)


def averaged_weights() -> Tensors:
    network, x = _network(), _data()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2, fused=True)
    average = torch.optim.swa_utils.AveragedModel(network)

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = network(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            average.update_parameters(network)
            yield average(x).sum()
    return _trained(average, optimizer, steps)


def parts_that_never_learn() -> Tensors:
    """Frozen parameters, outputs that are never differentiated, and a graph that lives into the next step."""
    network, x = _network(), _data()
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], 1e-2)
    unused = None

    def steps() -> Iterator[Any]:
        nonlocal unused
        for _ in range(STEPS):
            optimizer.zero_grad()
            y = network(x)
            side = y.exp().sin()
            loss = y.pow(2).mean()
            loss.backward()
            optimizer.step()
            before, unused = unused, side
            yield loss if before is None else before.sum()
    return _trained(network, optimizer, steps)


AWKWARD: dict[str, Callable[[], Tensors]] = {f.__name__: f for f in (
    graph_that_is_retained, hessian_vector_product, hooks_everywhere, gradients_accumulated, mixed_precision,
    backward_in_lower_precision, checkpoints, reentrant_checkpoints, optimizer_that_computes_the_loss_itself,
    functions_of_ones_own, backward_in_another_thread, forward_in_another_thread, interrupted_steps,
    optimizer_within_backward, two_optimizers_in_turn, batches_of_changing_sizes, steps_that_end_otherwise,
    evaluation_in_between, reseeded_between_forward_and_backward, parameters_written_through_data,
    activations_written_through_data, buffers_that_forward_writes, read_past_the_dispatcher,
    saved_tensors_that_are_looked_at, hooks_of_ones_own_inside, modes_across_steps, sparse_gradients,
    ragged_batches, gradients_kept_and_clipped, averaged_weights, parts_that_never_learn)}
