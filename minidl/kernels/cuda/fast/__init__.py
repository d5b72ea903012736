"""Faster forms of kernels, in families, and a switch for each. Not yet timed beside the general ones on a GPU.

  elements      elementwise operations, casts, dense copies and dropout, 16 bytes a load
  copies        strided copies whose innermost dimension is a run of 16 bytes
  columns       sums down the columns of tables
  batchnorm     batch norm of channels-last maps
  layernorm     layer norm of dense rows, and the gradients of its parameters
  softmax       softmax of dense rows, and its gradient
  pool          pooling of channels-last maps
  pool-windows  several windows per thread (within pool)
  pool-tiles    gradients for a tile of pixels per thread (within pool)

All are on by default. ``MINIDL_CUDA_FAST=columns,pool`` turns on only these, ``MINIDL_CUDA_FAST=none`` none. If a
family is off, the general kernels compute the same: elementwise results with the same bits, sums within rounding.
"""

import os

from minidl.errors import UserError

VARIABLE = "MINIDL_CUDA_FAST"
FAMILIES = ("elements", "copies", "columns", "batchnorm", "layernorm", "softmax", "pool", "pool-windows", "pool-tiles")


def chosen(text: str | None) -> frozenset[str]:
    """Return the families that a value of MINIDL_CUDA_FAST turns on; None: all. Raises UserError for unknown ones."""
    if text is None or text == "all":
        return frozenset(FAMILIES)
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FAMILIES:
            raise UserError(f"{VARIABLE}: {name!r} is no family of kernels; known: {', '.join(FAMILIES)}, all, none")
    return frozenset(names)


ON = chosen(os.environ.get(VARIABLE))


def is_on(family: str) -> bool:
    """Return True if the kernels of a family, such as "pool", may be used."""
    return family in ON
