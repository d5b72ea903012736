"""The networks that train.py knows by name. One of your own needs no entry: ``package.module:function`` will do."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from minidl.errors import UserError
from minidl.nn import Module
from models.bert import Text, bert_base, bert_large, bert_medium, bert_mini, bert_small, bert_tiny
from models.lenet import LeNet
from models.mlp import MLP
from models.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from models.vgg import vgg11, vgg13, vgg16, vgg19


@dataclass(frozen=True)
class Model:
    """A network by name: how to make one, and the data it is made for unless told otherwise.

    build        takes ``num_classes`` and ``in_channels``; and ``image_size`` if the shapes of its layers depend on it.
    input_shape  (C, H, W) of one image, when these are not given.
    num_classes  likewise.
    text         of a network for text, the batch it is made for: see ``models.bert``. It takes none of the above, and
                 its forward pass returns a loss.
    """

    build: Callable[..., Module]
    input_shape: tuple[int, int, int] = (3, 224, 224)
    num_classes: int = 1000
    text: Text | None = None

    @property
    def image_size(self) -> int:
        """Pixels a side."""
        return self.input_shape[1]


MODELS: dict[str, Model] = {
    "mlp": Model(MLP, (1, 28, 28), 10),
    "lenet": Model(LeNet, (1, 32, 32), 10),
    "vgg11": Model(vgg11),
    "vgg13": Model(vgg13),
    "vgg16": Model(vgg16),
    "vgg19": Model(vgg19),
    "resnet18": Model(resnet18),
    "resnet34": Model(resnet34),
    "resnet50": Model(resnet50),
    "resnet101": Model(resnet101),
    "resnet152": Model(resnet152),
    "bert-tiny": Model(bert_tiny, text=Text()),
    "bert-mini": Model(bert_mini, text=Text()),
    "bert-small": Model(bert_small, text=Text()),
    "bert-medium": Model(bert_medium, text=Text()),
    "bert-base": Model(bert_base, text=Text()),
    "bert-large": Model(bert_large, text=Text()),
}


def find(name: str) -> Model:
    """The entry of a known name, or one made of ``package.module:function`` for 224x224 images and 1000 classes.

    Raises UserError, with the nearest known names, if there is neither.
    """
    if ":" in name:
        return Model(_import(name))
    if name not in MODELS:
        near = get_close_matches(name, MODELS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(MODELS)}"
        raise UserError(f"no model is called {name!r}; {hint} (or package.module:function for one of your own)")
    return MODELS[name]


def create(name: str, *, num_classes: int | None = None, in_channels: int | None = None,
           image_size: int | None = None) -> Module:
    """A new network in the current runtime; what is not given is as its function has it.

    The image's size is passed on if the function takes it, and otherwise taken not to matter. Raises UserError if the
    name is unknown, or if a function of one's own takes no ``num_classes`` or ``in_channels`` and these are given.
    """
    model = find(name)
    accepts = inspect.signature(model.build).parameters
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    arguments = {argument: value for argument, value in given.items() if value is not None}
    if "image_size" not in accepts:
        arguments.pop("image_size", None)
    for argument, value in arguments.items():
        if argument not in accepts:
            raise UserError(f"{name} takes no {argument}, and {value} was asked for")
    network = model.build(**arguments)
    if not isinstance(network, Module):
        raise UserError(f"{name} returned {type(network).__name__}, which is not a minidl.nn.Module")
    return network


def _import(name: str) -> Callable[..., Module]:
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"cannot load the model {name}: {error}") from error
    if not callable(function):
        raise UserError(f"cannot load the model {name}: {function_name} cannot be called")
    return function
