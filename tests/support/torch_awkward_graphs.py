"""Programs that take derivatives in unusual ways, or are interrupted, in the form of ``torch_awkward``."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints
from torch_awkward import STEPS, Tensors, _data, _network, _simple, _trained, _usual


def _quietly(program: Callable[[], Tensors]) -> Callable[[], Tensors]:
    """A program of which PyTorch warns."""
    @wraps(program)
    def quiet() -> Tensors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program()
    return quiet


@_quietly
def selective_checkpoints() -> Tensors:
    """Products are kept, all else is computed again by PyTorch."""
    context = partial(checkpoints.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

    def step(network, x, optimizer):
        y = checkpoints.checkpoint(network, x, use_reentrant=False, context_fn=context)
        loss = y.pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


def checkpoints_within_checkpoints() -> Tensors:
    def inner(network, x):
        return checkpoints.checkpoint(network[:3], x, use_reentrant=False).sin()

    def step(network, x, optimizer):
        y = checkpoints.checkpoint(inner, network, x, use_reentrant=False)
        loss = network[3:](y).pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


@_quietly
def parts_that_are_compiled() -> Tensors:
    torch._dynamo.reset()
    network, x = _network(), _data()
    part = torch.compile(network[3:], backend="aot_eager")
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    return _usual(network, optimizer, lambda: part(network[:3](x).sin()).pow(2).mean())


def interrupts_by_the_keyboard() -> Tensors:
    """Ctrl-C comes in the midst of a backward pass, and in the midst of a forward pass; training goes on."""
    def step(network, x, optimizer):
        def stop(gradient):
            raise KeyboardInterrupt
        y = network[:4](x)
        handle = y.register_hook(stop)
        with contextlib.suppress(KeyboardInterrupt):
            network[4:](y).pow(2).sum().backward()
        handle.remove()
        optimizer.zero_grad()
        with contextlib.suppress(KeyboardInterrupt):
            network[3:](network[:3](x).exp())
            raise KeyboardInterrupt
        loss = network(x).pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


def another_training_in_another_thread() -> Tensors:
    """Its optimizer steps while a step of this one is under way."""
    def step(network, x, optimizer):
        found = []

        def beside():
            weight = torch.ones(48, 48, requires_grad=True)
            other = torch.optim.SGD([weight], 0.1)
            for _ in range(3):
                other.zero_grad()
                (x @ weight).sin().sum().backward()
                other.step()
            found.append(weight.detach().sum())
        y = network[:4](x)
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        loss = network[4:](y).pow(2).mean()
        loss.backward()
        return torch.stack([loss, found[0]])
    return _simple(step)


def two_losses_on_one_trunk() -> Tensors:
    def step(network, x, optimizer):
        trunk = network[:4](x)
        first, second = network[4:](trunk).pow(2).mean(), trunk.exp().mean()
        first.backward(inputs=list(network[:4].parameters()), retain_graph=True)
        middle = torch.autograd.grad(second, trunk, retain_graph=True)[0]
        (first + second + (middle.detach() * trunk).sum()).backward()
        return torch.stack([first, second])
    return _simple(step)


@_quietly
def second_derivatives_of_all() -> Tensors:
    """Jacobians and Hessians of the library, and a gradient that keeps its own graph."""
    def step(network, x, optimizer):
        w = network[0].weight
        hessian = torch.autograd.functional.hessian(lambda b: (F.gelu(x[:4] @ w.t() + b)).pow(2).sum(), network[0].bias)
        jacobian = torch.autograd.functional.jacobian(lambda v: network[5](v).sin(), x[:2])
        network(x).pow(2).mean().backward(create_graph=True)
        penalty = sum(p.grad.pow(2).sum() for p in network.parameters())
        for p in network.parameters():
            p.grad = None
        penalty.backward()
        return torch.cat([hessian.reshape(-1), jacobian.reshape(-1), penalty.reshape(1)])
    return _simple(step)


@_quietly
def forward_derivatives() -> Tensors:
    """Dual numbers go forward while graphs are kept for going backward."""
    def step(network, x, optimizer):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.cos(x))
            y = network[3:](F.silu(dual @ network[0].weight))
            primal, tangent = torch.autograd.forward_ad.unpack_dual(y)
            loss = primal.pow(2).mean() + tangent.pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


class Scaled(torch.autograd.Function):
    """Saves inputs, outputs and something between, some of them twice, and can be differentiated twice."""

    @staticmethod
    def forward(x, w):
        between = (x * w).exp()
        return between * w, between

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w = inputs
        ctx.save_for_backward(x, w, w, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, unused):
        x, w, again, between = ctx.saved_tensors
        return g * between * w * again, (g * (between + (x * between * w))).sum(0)


def functions_that_save_their_results() -> Tensors:
    def step(network, x, optimizer):
        y, between = Scaled.apply(network(x), network[5].weight)
        grad, = torch.autograd.grad(y.mean(), network[5].weight, create_graph=True)
        loss = y.pow(2).mean() + grad.pow(2).sum() + between.mean()
        loss.backward()
        return loss
    return _simple(step)


def backward_through_time() -> Tensors:
    """The state of a step goes on into the next one, detached in every second."""
    def carried() -> Callable[[Any, torch.Tensor, Any], torch.Tensor]:
        state: list[torch.Tensor] = []

        def step(network, x, optimizer):
            h = state[-1] if state else torch.zeros_like(x)
            parts = []
            for n in range(5):
                h = torch.tanh(network[:4](x + h))
                parts.append(h.pow(2).mean())
                if n % 2:
                    h = h.detach()
            state[:] = [h.detach()]
            loss = torch.stack(parts).sum()
            loss.backward()
            return loss
        return step
    return _simple(carried())


def gradients_of_inputs_alone() -> Tensors:
    """An attack on the input between the steps: gradients that no optimizer takes, and parameters frozen meanwhile."""
    def step(network, x, optimizer):
        network.requires_grad_(False)
        attacked = x.clone()
        for _ in range(3):
            attacked.requires_grad_()
            gradient, = torch.autograd.grad(network(attacked).pow(2).mean(), attacked)
            attacked = (attacked + 0.1 * gradient.sign()).detach()
        network.requires_grad_(True)
        loss = network(attacked).pow(2).mean()
        loss.backward()
        return loss
    return _simple(step)


@_quietly
def anomalies_and_profiles() -> Tensors:
    """Under PyTorch's detector of anomalies and its profiler."""
    def step(network, x, optimizer):
        with torch.autograd.detect_anomaly(check_nan=True), torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True):
            loss = network(x).pow(2).mean()
            loss.backward()
        return loss
    return _simple(step)


def gradients_of_several_tensors_at_once() -> Tensors:
    def step(network, x, optimizer):
        seen: list[torch.Tensor] = []
        y, z = network[:4](x), network[:3](x.sin())
        handle = torch.autograd.graph.register_multi_grad_hook(
            [y, z], lambda grads: seen.append(sum(g.sum() for g in grads if g is not None)))
        loss = network[4:](y).pow(2).mean() + z.exp().mean()
        y.register_hook(lambda g: g.mul_(0.5))  # writes the gradient that goes on
        loss.backward()
        handle.remove()
        return torch.stack([loss, *seen])
    return _simple(step)


def steps_without_an_optimizer() -> Tensors:
    """Parameters are written by hand; no step of an optimizer ends anything."""
    network, x = _network(), _data()

    def steps() -> Iterator[Any]:
        for _ in range(STEPS):
            loss = network(x).pow(2).mean()
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for p, g in zip(network.parameters(), gradients, strict=True):
                    p -= 0.05 * g
            yield loss
    return _trained(network, torch.optim.SGD(network.parameters(), 0.0), steps)


GRAPHS: dict[str, Callable[[], Tensors]] = {f.__name__: f for f in (
    selective_checkpoints, checkpoints_within_checkpoints, parts_that_are_compiled, interrupts_by_the_keyboard,
    another_training_in_another_thread, two_losses_on_one_trunk, second_derivatives_of_all, forward_derivatives,
    functions_that_save_their_results, backward_through_time, gradients_of_inputs_alone, anomalies_and_profiles,
    gradients_of_several_tensors_at_once, steps_without_an_optimizer)}
