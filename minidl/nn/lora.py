"""Low-rank adapters of linear layers (LoRA): Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.

``add(model, r=16)`` freezes a model and gives its linear layers adapters, ``adapters`` and ``load`` are their state
alone, and ``merge`` adds them to the weights. Names and the meaning of arguments are those of the package peft.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from minidl.autograd import no_grad
from minidl.dispatch import donate, exchange
from minidl.errors import UserError
from minidl.meta import float32
from minidl.nn import init
from minidl.nn.layers import Dropout, Embedding, Linear
from minidl.nn.module import Module
from minidl.nn.parameters import kept
from minidl.nn.precision import computed_in
from minidl.ops.choose import convert
from minidl.ops.elementwise import add as add_
from minidl.ops.elementwise import scale
from minidl.ops.linear import matmul
from minidl.tensor import Tensor

PEFT_PREFIX = "base_model.model."  # of all names in peft's files
ADAPTER_NAMES = ("lora_A.weight", "lora_B.weight")


class LoRALinear(Linear):
    """A frozen linear layer with a trained adapter: x w^T + b + (alpha / r) dropout(x) A^T B^T.

    weight, bias  those of the adapted layer, under the same names
    lora_A        Linear [in -> r], with random initial weights; lora_B: Linear [r -> out], at first 0
    """

    def __init__(self, base: Linear, r: int, lora_alpha: float, lora_dropout: float = 0.0) -> None:
        self.weight, self.bias = base.weight, base.bias
        outs, ins = base.weight.shape
        self.scaling = lora_alpha / r
        self.lora_dropout = Dropout(lora_dropout)
        self.lora_A = Linear(ins, r, bias=False)
        self.lora_B = Linear(r, outs, bias=False)
        init.constant_(self.lora_B.weight, 0.0)

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        z = self.lora_B(self.lora_A(self.lora_dropout(input)))
        z = scale(donate(z), self.scaling)
        return add_(donate(y), donate(z))

    def merged(self) -> Linear:
        """Return a plain layer with the weight w + (alpha / r) B A, in float32, which is frozen too."""
        layer = Linear.__new__(Linear)
        with no_grad():
            change = scale(matmul(self.lora_B.weight, self.lora_A.weight), self.scaling)
            layer.weight = kept(add_(convert(self.weight, float32), change))
        layer.bias = self.bias
        return layer


def add(model: Module, r: int = 8, lora_alpha: float | None = None, *, lora_dropout: float = 0.0,
        target_modules: Collection[str] | None = None) -> list[str]:
    """Freeze all parameters of a model, and give its linear layers adapters of rank r; return the layers' names.

    lora_alpha      the adapters' results are multiplied by lora_alpha / r; None: r, so by 1
    lora_dropout    probability of dropout before the adapters
    target_modules  names of layers, or the last parts of names, such as ("q_proj", "v_proj"); None: all linear layers

    Frozen weights of linear layers and embeddings are kept in the runtime's precision from now on: layers compute with
    the same bits as with the float32 weights, which take twice the memory of 16-bit ones. Create optimizers after this
    call. Raises UserError for a rank below 1, a model with adapters, or if there is no such layer; then nothing is
    changed.
    """
    if r < 1:
        raise UserError(f"the rank of adapters must be at least 1, not {r}")
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise UserError("the model has adapters already; merge them first")
    chosen = [(parent, name, layer, path) for parent, name, layer, path in _linear_layers(model)
              if target_modules is None or any(path == t or path.endswith("." + t) for t in target_modules)]
    if not chosen:
        raise UserError("no linear layer to adapt" + ("" if target_modules is None else
                                                      f" is called {' or '.join(target_modules)}"))
    model.requires_grad_(False)
    _store_in_precision(model)
    _replace(chosen, lambda layer: LoRALinear(layer, r, r if lora_alpha is None else lora_alpha, lora_dropout))
    return [path for _, _, _, path in chosen]


def merge(model: Module) -> None:
    """Add every adapter to the weight of its layer, which becomes a plain linear layer of float32 again.
    All parameters stay frozen; ``requires_grad_()`` changes that. Raises UserError for a model without adapters."""
    adapted = [(parent, name, layer, path) for parent, name, layer, path in _linear_layers(model)
               if isinstance(layer, LoRALinear)]
    if not adapted:
        raise UserError("the model has no adapters to merge")
    _replace(adapted, lambda layer: layer.merged())


def adapters(model: Module) -> dict[str, np.ndarray]:
    """Return copies on the host of the adapters' weights alone, by their names in the model. Waits for the device."""
    return {name: parameter.numpy() for name, parameter in model.named_parameters() if name.endswith(ADAPTER_NAMES)}


def load(model: Module, arrays: Mapping[str, Any]) -> None:
    """Overwrite the adapters' weights; names may have peft's prefix. ``add`` must have made the adapters.
    Raises UserError, and writes nothing, if names are missing or unexpected, or shapes differ."""
    given = {name.removeprefix(PEFT_PREFIX): array for name, array in arrays.items()}
    own = {name for name, _ in model.named_parameters() if name.endswith(ADAPTER_NAMES)}
    if own != given.keys():
        shown = ", ".join(sorted(own ^ given.keys())[:3])
        raise UserError(f"these are not the adapters of this model: {len(own)} weights there, {len(given)} given, "
                        f"and in one alone {shown}")
    model.load_state_dict(given, strict=False)


def _linear_layers(model: Module) -> Iterator[tuple[Module, str, Any, str]]:
    """Return (parent, its attribute, layer, dotted name) of all layers that compute as Linear or LoRALinear do.
    The layers inside of adapters are left out."""
    computes = (Linear.forward, LoRALinear.forward)
    inside = [path + "." for path, module in model.named_modules() if isinstance(module, LoRALinear)]
    return ((parent, name, child, f"{path}.{name}" if path else name) for path, parent in model.named_modules()
            for name, child in parent.named_children()
            if isinstance(child, Linear) and type(child).forward in computes
            and not f"{path}.{name}".startswith(tuple(inside)))


def _replace(chosen: Collection[tuple[Module, str, Any, str]], make: Callable[[Any], Linear]) -> None:
    """Replace each layer in its parent by what ``make`` makes of it; one layer of several parents by one."""
    made: dict[int, Linear] = {}
    for parent, name, layer, _ in chosen:
        if id(layer) not in made:
            made[id(layer)] = make(layer).train(layer.training)
        setattr(parent, name, made[id(layer)])


def _store_in_precision(model: Module) -> None:
    for module in model.modules():
        if isinstance(module, Linear | Embedding):
            weight = module.weight
            dtype = computed_in(weight.dtype)
            if dtype is not weight.dtype:
                with no_grad():
                    exchange(weight, kept(convert(weight, dtype)))
