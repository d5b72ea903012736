"""The precisions of a network, named as in other frameworks. Knows dtypes; no device and no layer."""

from dataclasses import dataclass

from minidl.errors import UserError
from minidl.meta import DType, bfloat16, float32


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision. In each, parameters, their gradients, the optimizer's state and all statistics are float32.

    activations  dtype of the values that layers compute and save, and of the gradients between layers
    tf32         True if products and convolutions of float32 tensors may round their factors to 10 bits, on a device
                 with tensor cores for that; other devices compute them exactly
    """

    name: str
    activations: DType
    tf32: bool


PRECISIONS = {p.name: p for p in (Precision("fp32", float32, False), Precision("tf32", float32, True),
                                  Precision("bf16", bfloat16, False))}
DEFAULT = "tf32"


def precision_of(name: str) -> Precision:
    """Return the precision of this name. Raises UserError if there is none."""
    if name not in PRECISIONS:
        raise UserError(f"no precision {name!r}; known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
