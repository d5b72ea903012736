"""The layers of einops as modules of minidl: the same patterns and arguments as those of ``einops.layers.torch``.

This file needs einops (``pip install einops``), so a program imports it by name:
``from minidl.nn.einops import Rearrange``.
"""

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from minidl.nn.init import uniform_
from minidl.nn.module import Module
from minidl.ops.products import einsum
from minidl.runtime import parameter
from minidl.tensor import Tensor


class Rearrange(RearrangeMixin, Module):
    """``einops.rearrange(x, pattern, **lengths)`` as a layer. Raises einops' EinopsError for a wrong pattern."""

    def forward(self, x: Tensor) -> Any:
        """Return the rearranged tensor."""
        return self._apply_recipe(x)


class Reduce(ReduceMixin, Module):
    """``einops.reduce(x, pattern, reduction, **lengths)`` as a layer: min, max, sum, mean, prod, any or all."""

    def forward(self, x: Tensor) -> Any:
        """Return the reduced tensor."""
        return self._apply_recipe(x)


class EinMix(_EinmixMixin, Module):
    """An einsum of the input with a weight, then a bias, as ``EinMix("b c -> b d", "c d", "d", c=3, d=4)``.

    ``weight_shape`` and ``bias_shape`` name the axes of both; every axis of these has its length as an argument.
    """

    def _create_parameters(self, weight_shape: list[int], weight_bound: float, bias_shape: list[int] | None,
                           bias_bound: float) -> None:
        self.weight = parameter(tuple(weight_shape))
        uniform_(self.weight, -weight_bound, weight_bound)
        self.bias = None if bias_shape is None else parameter(tuple(bias_shape))
        if self.bias is not None:
            uniform_(self.bias, -bias_bound, bias_bound)

    def _create_rearrange_layers(self, before: str | None, before_lengths: dict[str, int] | None, after: str | None,
                                 after_lengths: dict[str, int] | None) -> None:
        self.pre_rearrange = None if before is None else Rearrange(before, **before_lengths or {})
        self.post_rearrange = None if after is None else Rearrange(after, **after_lengths or {})

    def forward(self, x: Tensor) -> Any:
        """Return the mixed tensor."""
        if self.pre_rearrange is not None:
            x = self.pre_rearrange(x)
        mixed = einsum(self.einsum_pattern, x, self.weight)
        if self.bias is not None:
            mixed = mixed + self.bias
        return mixed if self.post_rearrange is None else self.post_rearrange(mixed)
