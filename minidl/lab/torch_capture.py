"""One training step of a PyTorch program as a trace, looked at without values: nothing is allocated (extra ``torch``).

PyTorch's fake tensors have shapes and no bytes; a dispatch mode above them sees every operation that runs, forward,
backward and optimizer, after autograd and composite operations have been taken apart. A storage is a tensor of the
trace; after a write in place it is another tensor in the same bytes (``functional``). An operation that returns views
of its inputs makes no tensor. A storage ends when PyTorch frees it. Hooks on saved tensors tell which tensors each call
keeps for its gradient. Seconds are those of a device profile's cost model, or with ``measured`` those of a run of the
same step with values on this CPU.

The program is named by ``package.module:function``. Called with the batch, the function returns a step without
arguments; called with nothing, it returns a network, which is given images of 3x224x224 or, where its configuration
has a vocabulary, text. A name that the package makes by ``create_model`` (timm) will do, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from minidl.device import profiles
from minidl.device.cost_model import kernel_seconds
from minidl.device.profiles import Profile
from minidl.errors import UserError
from minidl.lab.functional import functional
from minidl.lab.inferred import with_lasting
from minidl.outside.user_modules import user_module
from minidl.plan.trace import Trace

try:
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry
except ImportError:
    raise UserError('a PyTorch program takes PyTorch: pip install "minidl[torch]"') from None

from minidl.lab.torch_watch import CallWatch

IMAGE, CLASSES, LENGTH = (3, 224, 224), 1000, 128
KINDS = (("pool", "pool"), ("sum", "reduce"), ("mean", "reduce"), ("norm", "reduce"), ("softmax", "reduce"),
         ("loss", "reduce"), ("copy", "copy"), ("clone", "copy"), ("cat", "copy"))  # of work, by what a name has in it
Step = Callable[[], Any]


# Seconds -------------------------------------------------------------------------------------------------------------
def modelled(profile: Profile, func: Any, args: Any, kwargs: Any, result: Any, took: float) -> float:
    """The modelled seconds of an operation on a profile."""
    tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
    nbytes = float(sum(t.numel() * t.element_size() for t in tensors))
    name = func._schema.name
    if "empty" in name or not nbytes:
        return 0.0
    count = flop_registry.get(func._overloadpacket)
    if count is not None:
        kind = "conv" if "conv" in name else "matmul"
        return kernel_seconds(profile, kind, float(count(*args, **kwargs, out_val=result)), nbytes)
    kind = next((kind for part, kind in KINDS if part in name), "elementwise")
    return kernel_seconds(profile, kind, 0.0, nbytes)


def measured(func: Any, args: Any, kwargs: Any, result: Any, took: float) -> float:
    """The measured seconds of an operation on this CPU."""
    return took


# Programs ------------------------------------------------------------------------------------------------------------
def capture(name: str, batch: int, device: str = "p100", *, values: bool = False) -> Trace:
    """The second step of a program, priced by a profile, or with ``values`` by a run on this CPU. Raises UserError."""
    if values:
        return record(lambda: program(name, batch), measured)
    profile = profiles.named(device.removeprefix("sim:"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        return record(lambda: program(name, batch), partial(modelled, profile))


def record(make: Callable[[], tuple[Step, Callable[[], list[Any]]]], price: Any) -> Trace:
    """Make a program and record its second step: the first makes the optimizer's state."""
    watch = CallWatch(price)
    step, lasting = make()
    step()
    with watch, torch.autograd.graph.saved_tensors_hooks(watch.save, watch.take):
        watch.begin(lasting())
        step()
        trace = watch.trace()
        watch.on = False
    return with_lasting(functional(trace))


def program(name: str, batch: int) -> tuple[Step, Callable[[], list[Any]]]:
    """(step, objects that outlive it). Raises UserError for an unknown name, and for an error of the program."""
    function = _found(name)
    try:
        wants = [p for p in inspect.signature(function).parameters.values()
                 if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        made = function(batch) if wants else _made(function)
        if isinstance(made, torch.nn.Module):
            return _of_network(made.train(), batch)
        if not callable(made):
            raise UserError(f"{name} returns {type(made).__name__}: a step without arguments is wanted, or a network")
        lasting = getattr(made, "lasting", None)
        return made, lasting if lasting is not None else lambda: []
    except UserError:
        raise
    except Exception as error:  # whatever a foreign program does
        raise UserError(f"{name} cannot be made: {type(error).__name__}: {error}") from None


def _made(function: Callable[[], Any]) -> Any:
    """The result of a function. A function that reads values while it runs makes its parameters with values, which are
    dropped afterwards."""
    try:
        return function()
    except DataDependentOutputException:
        fake: Any = torch._guards.detect_fake_mode()
        with unset_fake_temporarily():
            made = function()
    for module in made.modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is not None:
                    kind[name] = fake.from_tensor(tensor)
    return made


def _found(name: str) -> Callable[..., Any]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"{name} is no program: torch:package.module:function:batch names one")
    try:
        module = user_module(module_name)
    except Exception as error:  # a foreign module may raise anything
        raise UserError(f"{name}: {type(error).__name__}: {error}") from None
    if hasattr(module, attribute):
        found = getattr(module, attribute)
        configured = getattr(found, "config_class", None)
        return found if configured is None else lambda: found(configured())
    if hasattr(module, "create_model"):
        return lambda: module.create_model(attribute, pretrained=False)
    raise UserError(f"{module_name} has no {attribute}")


def _of_network(network: Any, batch: int) -> tuple[Step, Callable[[], list[Any]]]:
    """A step of a network on noise: SGD with momentum, or AdamW for text."""
    vocabulary = getattr(getattr(network, "config", None), "vocab_size", None)
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if vocabulary is None:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, capturable=False)

    def loss() -> Any:
        if vocabulary is not None:
            length = min(LENGTH, getattr(network.config, "max_position_embeddings", LENGTH))
            tokens = torch.zeros(batch, length, dtype=torch.long)
            found = network(input_ids=tokens, labels=tokens) if "labels" in inspect.signature(
                network.forward).parameters else network(input_ids=tokens)
            value = getattr(found, "loss", None)
            return found[0].float().mean() if value is None else value
        images, labels = torch.empty(batch, *IMAGE), torch.zeros(batch, dtype=torch.long)
        found = network(images)
        outputs = found if isinstance(found, torch.Tensor) else found[0]
        return torch.nn.functional.cross_entropy(outputs, labels)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def lasting() -> list[Any]:
        state = [t for each in optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor)]
        return [*network.parameters(), *network.buffers(), *state]

    return step, lasting
