"""Loads saved arrays into a module's tensors by name: all of them or, on an error, none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minidl.context import current
from minidl.errors import UserError
from minidl.ops.update import upload_
from minidl.runtime.upload import host_array
from minidl.tensor import Tensor

NOT_KEPT = "num_batches_tracked"  # PyTorch's count of batches, which only its cumulative averages need
SHOWN_NAMES = 3  # the most names that an error lists for each kind of mismatch


def load(owner: str, targets: Mapping[str, Tensor], arrays: Mapping[str, Any], *,
         strict: bool) -> tuple[list[str], list[str]]:
    """Overwrite tensors with the arrays of their names; return (names without an array, names without a tensor).
    Raises UserError, naming ``owner``, and writes nothing if shapes differ or, if ``strict``, names do."""
    arrays = {name: array for name, array in arrays.items() if not name.endswith(NOT_KEPT)}
    missing = [name for name in targets if name not in arrays]
    unexpected = [name for name in arrays if name not in targets]
    values = {name: _values(arrays[name]) for name in targets if name in arrays}
    misfits = [f"{name} is {list(value.shape)} and must be {list(targets[name].shape)}"
               for name, value in values.items() if value.shape != targets[name].shape]
    complaints = [_listing("wrong shape", misfits)]
    if strict:
        complaints += [_listing("missing", missing), _listing("unexpected", unexpected)]
    if any(complaints):
        raise UserError(f"the state does not fit {owner}: " + "; ".join(filter(None, complaints)))
    # Copy each array: the upload runs later, in stream order, and the caller may change the array before that.
    copies = {name: np.array(value, targets[name].dtype.name, order="C") for name, value in values.items()}
    for name, value in copies.items():
        upload_(targets[name], value)
    return missing, unexpected


def _values(array: Any) -> np.ndarray:
    """Return an array of any library, or a PyTorch parameter, as a NumPy array."""
    return array.numpy() if isinstance(array, Tensor) else host_array(array, current().device)


def _listing(what: str, names: list[str]) -> str:
    """Return text such as ``3 missing: a, b, c``, with the first names only; an empty string for no names."""
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    return f"{len(names)} {what}: {shown}" if names else ""
