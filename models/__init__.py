"""The networks that train.py knows by name; names are timm's where timm has the network.

Your own network needs no entry here: give ``package.module:function`` instead.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from minidl.errors import UserError
from minidl.models import bert, gpt, inception_v3, llama, t5, unet, weights
from minidl.models.convnext import convnext_base, convnext_small, convnext_tiny
from minidl.models.densenet import densenet121, densenet169, densenet201
from minidl.models.efficientnet import efficientnet_b0, efficientnet_b2, efficientnet_b4
from minidl.models.inception_v4 import InceptionV4
from minidl.models.lenet import LeNet
from minidl.models.mlp import MLP
from minidl.models.mobilenet_v3 import mobilenet_v3_large, mobilenet_v3_small
from minidl.models.resnet import resnet18, resnet20, resnet34, resnet50, resnet101, resnet152
from minidl.models.resnext import resnext50_32x4d, resnext101_32x8d, resnext101_64x4d
from minidl.models.text import Text
from minidl.models.vgg import vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from minidl.models.vit import vit_b_16, vit_b_32, vit_l_16
from minidl.nn import Module
from minidl.ops import cross_entropy
from minidl.outside.user_modules import user_function
from minidl.tensor import Tensor
from minidl.training import metrics
from minidl.training.metrics import Score

# The requirements of a function that --model package.module:function names.
CONTRACT = ("a model is a function like build(num_classes=1000, in_channels=3), both with defaults, that returns a "
            "minidl.nn.Module")


def classification_loss(model: Module, images: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy, a scalar. images: [N, C, H, W], labels: [N]."""
    return cross_entropy(model(images), labels, label_smoothing=label_smoothing)


@dataclass(frozen=True)
class Model:
    """An entry of the table of networks: how to build the network, its loss, and its default data.

    build         function of ``num_classes`` and ``in_channels``, and of ``image_size`` if layer shapes depend on it
    input_shape   default (C, H, W) of one image
    num_classes   default number of classes
    loss          function of (network, images, labels) that returns a scalar
    pixel_labels  True for a label per pixel, [N, H, W]; False for a label per image, [N]
    text          for a language model, the shape of its batch; the fields above do not apply, and its forward pass
                  returns a loss
    text_batch    function of (runtime, batch size, text) that returns a random batch: the forward pass's arguments
    reads_pairs   for a language model: True if it learns from pairs of sentences (minidl.data.TextBatch), False if from
                  running text (TokenBatch)
    score         function of (network, batch) that scores predictions for test data
    """

    build: Callable[..., Module]
    input_shape: tuple[int, int, int] = (3, 224, 224)
    num_classes: int = 1000
    loss: Callable[[Module, Tensor, Tensor], Tensor] = classification_loss
    pixel_labels: bool = False
    text: Text | None = None
    text_batch: Callable[..., Sequence[Tensor]] = bert.synthetic_batch
    reads_pairs: bool = False
    score: Callable[[Any, Any], Score | None] = metrics.of_images

    @property
    def image_size(self) -> int:
        """The default height of the images in pixels."""
        return self.input_shape[1]


_BERT = partial(Model, text=Text(), reads_pairs=True, score=metrics.of_words)
_UNET = partial(Model, num_classes=2, loss=unet.loss, pixel_labels=True, score=metrics.of_pixels)
_GPT = partial(Model, text=gpt.CONTEXT, text_batch=gpt.synthetic_batch,
               score=metrics.of_next_tokens)
_LLAMA = partial(Model, text=llama.CONTEXT, text_batch=gpt.synthetic_batch,
                 score=metrics.of_next_tokens)
_QWEN = partial(Model, text=llama.QWEN_CONTEXT, text_batch=gpt.synthetic_batch,
                score=metrics.of_next_tokens)
_T5 = partial(Model, text=t5.CONTEXT, text_batch=gpt.synthetic_batch, score=metrics.of_next_tokens)
_V3 = partial(Model, input_shape=(3, 299, 299), loss=inception_v3.loss)

MODELS: dict[str, Model] = {
    "mlp": Model(MLP, (1, 28, 28), 10),
    "lenet": Model(LeNet, (1, 32, 32), 10),
    "vgg11": Model(vgg11), "vgg13": Model(vgg13), "vgg16": Model(vgg16), "vgg19": Model(vgg19),
    "vgg11_bn": Model(vgg11_bn), "vgg13_bn": Model(vgg13_bn), "vgg16_bn": Model(vgg16_bn), "vgg19_bn": Model(vgg19_bn),
    "resnet18": Model(resnet18), "resnet34": Model(resnet34), "resnet50": Model(resnet50),
    "resnet101": Model(resnet101), "resnet152": Model(resnet152), "resnet20": Model(resnet20, (3, 32, 32), 10),
    "resnext50_32x4d": Model(resnext50_32x4d), "resnext101_32x8d": Model(resnext101_32x8d),
    "resnext101_64x4d": Model(resnext101_64x4d),
    "inception_v3": _V3(inception_v3.inception_v3), "inception_v3_aux": _V3(inception_v3.inception_v3_aux),
    "inception_v4": Model(InceptionV4, (3, 299, 299)),
    "densenet121": Model(densenet121), "densenet169": Model(densenet169), "densenet201": Model(densenet201),
    "mobilenet_v3_small": Model(mobilenet_v3_small), "mobilenet_v3_large": Model(mobilenet_v3_large),
    "efficientnet_b0": Model(efficientnet_b0), "efficientnet_b2": Model(efficientnet_b2, (3, 260, 260)),
    "efficientnet_b4": Model(efficientnet_b4, (3, 380, 380)),
    "vit_b_16": Model(vit_b_16), "vit_b_32": Model(vit_b_32), "vit_l_16": Model(vit_l_16),
    "convnext_tiny": Model(convnext_tiny), "convnext_small": Model(convnext_small),
    "convnext_base": Model(convnext_base),
    "unet": _UNET(unet.UNet), "unet-small": _UNET(unet.unet_small),
    "bert-tiny": _BERT(bert.bert_tiny), "bert-mini": _BERT(bert.bert_mini), "bert-small": _BERT(bert.bert_small),
    "bert-medium": _BERT(bert.bert_medium), "bert-base": _BERT(bert.bert_base), "bert-large": _BERT(bert.bert_large),
    "gpt2": _GPT(gpt.gpt2), "gpt2-medium": _GPT(gpt.gpt2_medium), "gpt2-large": _GPT(gpt.gpt2_large),
    "gpt2-xl": _GPT(gpt.gpt2_xl),
    "llama-tiny": _LLAMA(llama.llama_tiny, text=llama.TINY_CONTEXT), "llama-1b": _LLAMA(llama.llama_1b),
    "llama-3b": _LLAMA(llama.llama_3b), "llama-8b": _LLAMA(llama.llama_8b),
    "qwen2.5-0.5b": _QWEN(llama.qwen25_05b), "qwen2.5-1.5b": _QWEN(llama.qwen25_15b),
    "qwen2.5-3b": _QWEN(llama.qwen25_3b),
    "qwen2.5-7b": _QWEN(llama.qwen25_7b, text=llama.QWEN_CONTEXT.of_vocabulary(152_064)),
    "t5-small": _T5(t5.t5_small), "t5-base": _T5(t5.t5_base), "t5-large": _T5(t5.t5_large), "t5-3b": _T5(t5.t5_3b),
    "flan-t5-small": _T5(t5.flan_t5_small), "flan-t5-base": _T5(t5.flan_t5_base),
    "flan-t5-large": _T5(t5.flan_t5_large), "flan-t5-xl": _T5(t5.flan_t5_xl),
}


load_weights = weights.load


def listing() -> str:
    """Return a text that lists every network with its default data, grouped by paper."""
    lines, family = [], ""
    for name, model in MODELS.items():
        build = model.build.func if isinstance(model.build, partial) else model.build
        source = (sys.modules[build.__module__].__doc__ or "").partition("\n")[0]
        if source != family:
            lines.append(source)
            family = source
        data = (f"{model.text.length} tokens per sequence" if model.text else
                f"{'x'.join(map(str, model.input_shape))} images, {model.num_classes} classes"
                + (" per pixel" if model.pixel_labels else ""))
        lines.append(f"  {name:17} {data}")
    return "\n".join(lines)


def find(name: str) -> Model:
    """Return the entry of a known name, or a new one for ``package.module:function``, 224x224 images and 1000 classes.
    Raises UserError, with the nearest known names, for an unknown name."""
    if ":" in name:
        return Model(user_function(name, "model"))
    if name not in MODELS:
        near = get_close_matches(name, MODELS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "--list-models lists all names"
        raise UserError(f"no model is called {name!r}; {hint} (or package.module:function for your own)")
    return MODELS[name]


def create(name: str, *, num_classes: int | None = None, in_channels: int | None = None,
           image_size: int | None = None, vocabulary: int | None = None, layers: int | None = None) -> Module:
    """Create a network in the current runtime; arguments of None keep the function's defaults.

    ``image_size`` is ignored if the function does not take it; ``vocabulary`` is for language models, ``layers`` for
    those of ``minidl.models.llama`` and ``t5``. Raises UserError for an unknown name, or if a function does not take a
    given argument.
    """
    model = find(name)
    accepts = _parameters(name, model.build)
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size,
             "vocabulary": vocabulary, "layers": layers}
    arguments = {argument: value for argument, value in given.items() if value is not None}
    if "image_size" not in accepts:
        arguments.pop("image_size", None)
    for argument, value in arguments.items():
        if argument not in accepts:
            raise UserError(f"{name} takes no {argument}, so it cannot be {value}"
                            + (f" ({CONTRACT})" if ":" in name else ""))
    network = _built(name, partial(model.build, **arguments))
    if not isinstance(network, Module):
        raise UserError(f"{name} returned {type(network).__name__}, which is not a minidl.nn.Module: {CONTRACT}")
    return network


def _parameters(name: str, build: Callable[..., Module]) -> Collection[str]:
    try:
        return inspect.signature(build).parameters
    except (TypeError, ValueError):  # not written in Python
        raise UserError(f"cannot make the model {name}: its parameters cannot be inspected") from None


def _built(name: str, build: Callable[[], Module]) -> Module:
    """Return the result of a build function. Raises UserError for any error of a user's own function."""
    try:
        return build()
    except (UserError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also sys.exit, which must not end this program
        if ":" not in name:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        # If the call itself failed, the function does not accept our arguments.
        place = CONTRACT if where.filename == __file__ else f"{where.filename}:{where.lineno}"
        raise UserError(f"cannot make the model {name}: {type(error).__name__}: {error} ({place})") from error
