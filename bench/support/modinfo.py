"""PyTorch's own samples of its modules (ModuleInfo), run with minidl's module of the same name from the same weights.

As ``opinfo``: outputs, the gradients of inputs and parameters, and the buffers afterwards, in training and outside.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import minidl
from bench.support import opinfo
from bench.support.opinfo import (
    ModuleInfo,
    Outcome,
    array,
    differs,
    in_ours,
    in_theirs,
    leaves,
    module_db,
    refusal,
    runtime,
)
from minidl import Tensor, nn

RANDOM = ("Dropout", "RReLU", "FractionalMaxPool", "AlphaDropout")


def modules() -> dict[str, ModuleInfo]:
    """PyTorch's samples of the modules that minidl has, by name."""
    known = {info.module_cls.__name__: info for info in module_db}
    return {name: info for name, info in known.items() if hasattr(nn, name) and not name.startswith(RANDOM)}


def run(library: Any, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs, gradients and buffers after a forward and a backward pass, as arrays by name."""
    kind = Tensor if library is minidl else torch.Tensor
    made = leaves(module(*inputs, **options), kind)
    found = {f"output {i}": array(t) for i, t in enumerate(made)}
    total = None
    for t in made:
        if t.requires_grad:
            weights = library.tensor(opinfo.weights_of(t)).to(t.dtype)
            total = (t * weights).sum() if total is None else total + (t * weights).sum()
    if total is not None:
        total.backward()
    for i, t in enumerate(leaves([inputs, options], kind)):
        if t.grad is not None:
            found[f"gradient of input {i}"] = array(t.grad)
    for name, p in module.named_parameters():
        if p.grad is not None:
            found[f"gradient of {name}"] = array(p.grad)
    for name, b in module.named_buffers():
        found[f"buffer {name}"] = array(b)
    return found


def compared(ours: dict[str, Any], right: dict[str, Any], dtype: str) -> str:
    """Return text about how two passes differ, empty if they do not. A missing gradient counts as one of zeros."""
    for name in sorted({*ours, *right}):
        if name in ours and name in right:
            words = differs(ours[name], right[name], dtype, False)
        else:
            one = ours[name] if name in ours else right[name]
            words = "missing" if not name.startswith("gradient") or one.any() else ""
        if words:
            return f"{name}: {words}"
    return ""


def outcome(name: str, info: ModuleInfo, sample: Any, dtype: str, number: int, training: bool) -> Outcome:
    """Run one sample with both libraries."""
    made, given = sample.constructor_input, sample.forward_input
    shown = re.sub(r"\s+", " ", f"{made.args} {made.kwargs}")[:300]

    def ended(kind: str, words: str = "") -> Outcome:
        return Outcome(name, "training" if training else "eval", dtype, number, kind,
                       re.sub(r"\s+", " ", words)[:300], shown)
    try:
        torch.manual_seed(0)
        peer = info.module_cls(*made.args, **made.kwargs).to(getattr(torch, dtype)).train(training)
        state = {key: value.clone() for key, value in peer.state_dict().items()}
        args, options = (in_theirs(value, True) for value in (given.args, given.kwargs))
        right = run(torch, peer, args, options)
    except Exception:
        return ended("both refuse")
    try:
        with runtime():
            layer = getattr(nn, name)(*in_ours(made.args), **in_ours(made.kwargs))
            layer.to(getattr(minidl, dtype))
            layer.load_state_dict({key: value for key, value in state.items() if "num_batches_tracked" not in key})
            layer.train(training)
            ours = run(minidl, layer, in_ours(given.args), in_ours(given.kwargs))
            right = {key: value for key, value in right.items() if "num_batches_tracked" not in key}
            words = compared({key: value for key, value in ours.items() if "num_batches_tracked" not in key}, right,
                             dtype)
            return ended("wrong" if words else "pass", words)
    except Exception as error:
        opinfo.forget()
        return ended(refusal(error), f"{type(error).__name__}: {error}")


def cases(dtypes: tuple[str, ...] = ("float32", "float64"), only: str | None = None) -> Iterator[Outcome]:
    """The outcomes of all samples of each module, in training and outside."""
    for name, info in modules().items():
        if only is not None and name != only:
            continue
        for dtype in dtypes:
            for training in (True, False):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    torch.manual_seed(0)
                    samples = info.module_inputs_func(info, device="cpu", dtype=getattr(torch, dtype),
                                                      requires_grad=True, training=training)
                    for number, sample in enumerate(samples):
                        if sample.forward_input is not None:
                            yield outcome(name, info, sample, dtype, number, training)
