"""Makes the PyTorch program that a word of the command line names: a training step, on whatever tensors PyTorch makes.

package.module:function   called with the batch, it returns a step without arguments; called with nothing, a network. A
                          class of transformers is made from its default configuration; a name that is not in a package
                          with ``create_model`` (timm) is made by that function.
folder, or organization/name   a model of transformers, by a folder's ``config.json`` or by one in the local cache of
                          Hugging Face's hub. Its weights are not read, code beside it is not run, and nothing is
                          downloaded.

A network is given images of 3x224x224 or, where its configuration has a vocabulary, text.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily

from minidl.errors import UserError
from minidl.outside.user_modules import user_module

IMAGE, CLASSES, LENGTH = (3, 224, 224), 1000, 128
CONFIGURATION = "config.json"
Step = Callable[[], Any]


@dataclass(frozen=True)
class Asked:
    """Settings of a recorded step. precision: a name of PRECISIONS, for autocast.
    checkpointed: paths of modules, whose results the recorded step computes again in its backward pass.
    The others are for a network that comes without a training step. tokens: length of a text. image: side of an image
    in pixels; None: the network's, or 224. optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``; None: ``adamw``
    for text, else ``momentum``."""

    tokens: int = LENGTH
    image: int | None = None
    precision: str = "fp32"
    checkpointed: tuple[str, ...] = ()
    optimizer: str | None = None


def program(name: str, batch: int, asked: Asked = Asked()) -> tuple[Step, Callable[[], list[Any]]]:  # noqa: B008
    """Return the step of a named program, and a function that returns tensors that outlive it.
    Raises UserError if there is no such program, if making it fails, or if it is neither a step nor a network."""
    function = _found(name)
    try:
        wants = [p for p in inspect.signature(function).parameters.values()
                 if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        made = function(batch) if wants else _made(function)
        if isinstance(made, torch.nn.Module):
            return _of_network(made.train(), batch, asked)
        if not callable(made):
            raise UserError(f"{name} returns {type(made).__name__}: a step without arguments is wanted, or a network")
        lasting = getattr(made, "lasting", None)
        return made, lasting if lasting is not None else lambda: []
    except UserError:
        raise
    except Exception as error:  # whatever a foreign program does
        raise UserError(f"{name} cannot be made: {type(error).__name__}: {error}") from None


def _made(function: Callable[[], Any]) -> Any:
    """Call a function that makes a network, on fake tensors, and return the network.
    If the function reads values, it is called with ordinary tensors, which are made fake afterwards."""
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
    if not colon or (Path(name) / CONFIGURATION).is_file():
        return _configured(name)
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


def _configured(name: str) -> Callable[[], Any]:
    """Return a function that makes a model of transformers with the configuration that is named.
    name: a folder with CONFIGURATION, or a model of Hugging Face's hub whose CONFIGURATION is in the local cache.
    Raises UserError for any other name."""
    try:
        import huggingface_hub
        import transformers
    except ImportError:
        raise UserError(f"{name} is no module:function, and as a model it takes transformers: pip install transformers"
                        ) from None
    transformers.utils.logging.set_verbosity_error()  # it warns of ids of words that no step here uses
    file = Path(name) / CONFIGURATION
    if not file.is_file():
        try:
            cached = None if Path(name).is_dir() else huggingface_hub.try_to_load_from_cache(name, CONFIGURATION)
        except huggingface_hub.errors.HFValidationError:
            cached = None
        if not isinstance(cached, str):
            raise UserError(_unknown(name))
        file = Path(cached)
    try:  # from a folder: by a name, the hub's library would ask the network even for what is in the cache
        config = transformers.AutoConfig.from_pretrained(str(file.parent), trust_remote_code=False)
    except Exception as error:  # it has many kinds for a damaged and for an unknown configuration
        raise UserError(f"{file}: {' '.join(str(error).split()).split('. ')[0]:.200}") from None
    kinds = [getattr(transformers, each) for each in config.architectures or () if hasattr(transformers, each)]
    return lambda: kinds[0]._from_config(config) if kinds else transformers.AutoModel.from_config(config)


def _unknown(name: str) -> str:
    """Return a message about a name that is neither a program nor a configuration."""
    if Path(name).is_dir():
        return f"the folder {name} contains no {CONFIGURATION}"
    return (f"{name} is no program: torch:package.module:function:batch names one; torch:folder:batch a model of "
            f"transformers by the folder's {CONFIGURATION}; torch:organization/name:batch one whose {CONFIGURATION} is "
            f"in the local cache of the hub (hf download {name} {CONFIGURATION})")


def _of_network(network: Any, batch: int, asked: Asked) -> tuple[Step, Callable[[], list[Any]]]:
    """Return a training step of a network, and a function as in ``program``."""
    config = getattr(network, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    parameters = [p for p in network.parameters() if p.requires_grad]
    make: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": partial(torch.optim.SGD, lr=0.1), "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "adam": partial(torch.optim.Adam, lr=1e-3), "adamw": partial(torch.optim.AdamW, lr=1e-3)}
    optimizer = make[asked.optimizer or ("momentum" if vocabulary is None else "adamw")](parameters)

    length = min(asked.tokens, getattr(config, "max_position_embeddings", None) or asked.tokens)
    side, channels = asked.image or _side(config), _channels(network, config)

    def loss() -> Any:
        if vocabulary is not None:
            tokens = torch.zeros(batch, length, dtype=torch.long)
            labels = tokens[:, 0] if "SequenceClassification" in type(network).__name__ else tokens
            found = network(input_ids=tokens, labels=labels) if "labels" in inspect.signature(
                network.forward).parameters else network(input_ids=tokens)
            value = getattr(found, "loss", None)
            return found[0].float().mean() if value is None else value
        images = torch.empty(batch, channels, side, side, dtype=parameters[0].dtype)
        labels = torch.zeros(batch, dtype=torch.long)
        try:
            found = network(images)
        except RuntimeError as error:  # PyTorch's kind for a shape that a layer does not take
            raise UserError(f"the network does not take the {channels} x {side} x {side} images that it was given "
                            f"({error}): --image-size changes their side; for other inputs, name a function that "
                            "takes the batch and returns a step") from None
        outputs = found if isinstance(found, torch.Tensor) else found[0]
        return torch.nn.functional.cross_entropy(outputs, labels)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    step.inputs = (f"{side} x {side} images" if vocabulary is None else  # type: ignore[attr-defined]
                   f"{length} tokens")

    def lasting() -> list[Any]:
        state = [t for each in optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor)]
        return [*network.parameters(), *network.buffers(), *state]

    return step, lasting


def _channels(network: Any, config: Any) -> int:
    """Return the channels of a network's images: those in its configuration or of its first convolution, or IMAGE's."""
    first = next((each for each in network.modules() if isinstance(each, torch.nn.Conv2d)), None)
    return int(getattr(config, "num_channels", IMAGE[0] if first is None else first.in_channels))


def _side(config: Any) -> int:
    """Return the side of a network's images in pixels: the one in its configuration, or IMAGE's."""
    side = getattr(config, "image_size", None)
    return int(side) if isinstance(side, int) else IMAGE[1]
