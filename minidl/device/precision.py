"""The precisions of a network, by the names that frameworks give them. Knows dtypes; no device and no layer."""

from dataclasses import dataclass

from minidl.errors import UserError
from minidl.meta import DType, bfloat16, float32


@dataclass(frozen=True, slots=True)
class Precision:
    """Parameters, their gradients, the optimizer's state and all statistics are float32 in each of them.

    activations  what layers compute and keep, and what gradients flow back in
    tf32         products and convolutions of float32 tensors may round their factors to 10 bits, where a device has
                 tensor cores for that; elsewhere they are exact
    """

    name: str
    activations: DType
    tf32: bool


PRECISIONS = {p.name: p for p in (Precision("fp32", float32, False), Precision("tf32", float32, True),
                                  Precision("bf16", bfloat16, False))}
DEFAULT = "tf32"


def precision_of(name: str) -> Precision:
    """The precision of a name. Raises UserError."""
    if name not in PRECISIONS:
        raise UserError(f"no precision {name!r}; known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
