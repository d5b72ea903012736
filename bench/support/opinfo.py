"""PyTorch's own samples of its functions (OpInfo), run with minidl's function of the same name beside PyTorch's.

A case is one sample of one form (function, method, method in place) in one dtype. It passes if values, dtype, shape and
gradients agree. Else the outcome is one of KINDS, of which the last two are faults.
"""

from __future__ import annotations

import re
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import minidl
from minidl import Tensor, UserError
from minidl.meta import DTYPES

# PyTorch's samples come with its own test cases, whose base class is of a package that nothing here needs.
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import ModuleInfo as ModuleInfo  # noqa: E402 - for ``modinfo``
from torch.testing._internal.common_modules import module_db as module_db  # noqa: E402
from torch.testing._internal.opinfo.core import OpInfo  # noqa: E402
from torch.testing._internal.opinfo.core import SampleInput as SampleInput  # noqa: E402 - for ``edges``

KINDS = ("pass", "both refuse", "refused", "listed", "unclear", "wrong")
DTYPES_TRIED = ("float32", "float64", "bfloat16", "int64", "bool")
# The largest relative difference of two ways to compute the same, and the absolute one for values of about 1. Of halves
# a composition rounds each of its results.
TOLERANCES = {"float32": (2e-4, 2e-5), "float64": (1e-6, 1e-8), "bfloat16": (6e-2, 6e-2)}
# What draws random numbers, or gives whatever was in memory.
RANDOM = frozenset([
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "uniform", "empty", "empty_like", "new_empty",
    "new_empty_strided", "empty_strided", "empty_permuted", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward"])
# What differs on purpose: the beginning of an operation's name, the beginning of the words, and why.
LISTED = [
    ("nn.functional.layer_norm", "gradient", "of one value it is a rounding times 1 / sqrt(eps), and not 0"),
    ("nn.functional.cross_entropy", "dtype float32 for bfloat16", "losses of halves are float32"),
    ("nn.functional.nll_loss", "dtype float32 for bfloat16", "losses of halves are float32"),
    ("nn.functional.linear_cross_entropy", "dtype float32 for bfloat16", "losses of halves are float32"),
    ("topk", "values", "of equal elements the first comes first; PyTorch says nothing of them"),
    ("sort", "values", "of equal elements the first comes first, also if it need not be stable"),
    ("argsort", "values", "of equal elements the first comes first, also if it need not be stable"),
]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case: which case it was, how it ended, and the text of the error or difference."""

    op: str
    form: str
    dtype: str
    number: int
    kind: str
    words: str = ""
    sample: str = ""


def found(library: Any, name: str) -> Any:
    """Return a library's public function by its dotted name, or None if it has none."""
    for part in name.split("."):
        library = getattr(library, part, None)
    return library


def names() -> dict[str, OpInfo]:
    """Return PyTorch's samples of what minidl has as a function or as a method of tensors, by name and variant."""
    known: dict[str, OpInfo] = {}
    for op in op_db:
        public = found(torch, op.name) is not None or hasattr(torch.Tensor, op.name)
        ours = found(minidl, op.name) is not None or hasattr(Tensor, op.name)
        if public and ours and op.name not in RANDOM:
            known[op.name + (f" {op.variant_test_name}" if op.variant_test_name else "")] = op
    return known


def in_ours(value: Any) -> Any:
    """Convert an argument for minidl: tensors, dtypes, and containers of these."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        if plain.dtype == torch.bfloat16:
            made = minidl.tensor(plain.float().numpy()).to(minidl.bfloat16)
            made = minidl.tensor(made) if value.requires_grad else made
        else:
            made = minidl.tensor(np.array(plain.resolve_neg().numpy(), order="C"))
        made.requires_grad = value.requires_grad
        return made
    if isinstance(value, torch.dtype):
        return getattr(minidl, str(value).removeprefix("torch."))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(in_ours, value))
    if isinstance(value, list | tuple):
        return type(value)(map(in_ours, value))
    return {key: in_ours(item) for key, item in value.items()} if isinstance(value, dict) else value


def in_theirs(value: Any, differentiated: bool) -> Any:
    """Convert an argument for PyTorch; each tensor becomes a leaf of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(differentiated and value.requires_grad)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(in_theirs(v, differentiated) for v in value)
    return {k: in_theirs(v, differentiated) for k, v in value.items()} if isinstance(value, dict) else value


def leaves(value: Any, kind: type) -> list[Any]:
    """Return the tensors in nested arguments or results, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in leaves(item, kind)]
    return [t for item in value.values() for t in leaves(item, kind)] if isinstance(value, dict) else []


def array(value: Any) -> np.ndarray:
    """Return the values of a tensor of either library; those of bfloat16 as float32."""
    if isinstance(value, Tensor):
        made = value.numpy()
        return made.astype("f4") if made.dtype.name == "bfloat16" else made
    plain = value.detach()
    made = (plain.float() if plain.dtype == torch.bfloat16 else plain).resolve_neg().numpy()
    return np.asarray(made)


def name_of(value: Any) -> str:
    """Return the name of a tensor's dtype."""
    return value.dtype.name if isinstance(value, Tensor) else str(value.dtype).removeprefix("torch.")


def weights_of(t: Any) -> np.ndarray:
    """Return the factors by which a result's elements are weighed in the sum whose gradient is taken."""
    return np.random.default_rng(5).uniform(0.5, 1.5, tuple(t.shape)).astype("f4")


Run = tuple[Any, list[Any], list[Any]]


def run(library: Any, form: str, name: str, sample: tuple[Any, tuple[Any, ...], dict[str, Any]],
        differentiated: bool) -> Run:
    """Call one form of a function; return its result, the result's tensors, and the gradients of its arguments.

    A gradient is None where there is none.
    """
    x, args, options = sample
    kind = Tensor if library is minidl else torch.Tensor
    given = leaves([x, args, options], kind)
    if form == "function":
        y = found(library, name)(x, *args, **options)
    else:
        start = x.clone() if form == "in place" else x
        y = getattr(start, name + ("_" if form == "in place" else ""))(*args, **options)
    made = leaves(y, kind)
    gradients: list[Any] = []
    if differentiated:
        total = None
        for t in made:
            if t.requires_grad:
                part = (t * library.tensor(weights_of(t)).to(t.dtype)).sum()
                total = part if total is None else total + part
        if total is not None:
            total.backward()
        gradients = [t.grad for t in given]
    return y, made, gradients


def differs(ours: np.ndarray, right: np.ndarray, dtype: str, exact: bool) -> str:
    """Return text about how values of one shape differ, empty if they do not."""
    if ours.shape != right.shape:
        return f"shape {list(ours.shape)} for {list(right.shape)}"
    if exact or right.dtype.kind not in "f":
        return "" if np.array_equal(ours, right) else f"values {ours.ravel()[:6]} for {right.ravel()[:6]}"
    rtol, atol = TOLERANCES.get(dtype, TOLERANCES["float32"])
    finite = np.abs(right[np.isfinite(right)], dtype="f8") if right.size else right
    scale = max(1.0, float(finite.max(initial=0.0))) if right.size else 1.0
    same = np.isclose(ours.astype("f8"), right.astype("f8"), rtol, atol * scale, equal_nan=True)
    if same.all():
        return ""
    at = np.unravel_index(int(np.argmin(same)), same.shape)
    return f"{ours[at]!r} for {right[at]!r} at {tuple(map(int, at))}, {int((~same).sum())} of {same.size}"


def compared(ours: Run, theirs: Run, dtype: str) -> str:
    """Return text about how two results differ, empty if they do not."""
    if not theirs[1]:
        same = ours[0] == theirs[0] or isinstance(theirs[0], float) and np.isclose(ours[0], theirs[0])
        return "" if same else f"{ours[0]!r} for {theirs[0]!r}"
    if len(ours[1]) != len(theirs[1]):
        return f"{len(ours[1])} tensors for {len(theirs[1])}"
    for mine, right in zip(ours[1], theirs[1], strict=True):
        if name_of(mine) != name_of(right):
            return f"dtype {name_of(mine)} for {name_of(right)}"
        words = differs(array(mine), array(right), dtype, False)
        if words:
            return words
    for mine, right in zip(ours[2], theirs[2], strict=True):
        if mine is None or right is None:
            given = right if mine is None else mine
            if given is not None and differs(array(given), np.zeros(tuple(given.shape), "f4"), dtype, False):
                return "no gradient" if mine is None else "a gradient where there is none"
        elif words := differs(array(mine), array(right), dtype, False):
            return f"gradient: {words}"
    return ""


def widened(value: Any, differentiated: bool, to: torch.dtype = torch.float32) -> Any:
    """Convert an argument for PyTorch, with ``to`` in place of narrower floating dtypes."""
    narrow = (torch.bfloat16, torch.float32) if to == torch.float64 else (torch.bfloat16,)
    if isinstance(value, torch.Tensor):
        plain = value.detach().clone()
        plain = plain.to(to) if plain.dtype in narrow else plain
        return plain.requires_grad_(differentiated and value.requires_grad)
    if isinstance(value, torch.dtype):
        return to if value in narrow else value
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(widened(v, differentiated, to) for v in value)
    return {k: widened(v, differentiated, to) for k, v in value.items()} if isinstance(value, dict) else value


def amiss(ours: Run, theirs: Run, truth: Run, dtype: str) -> str:
    """Return text where minidl's result is neither PyTorch's nor its float64 result ``truth``, empty if it is nowhere.

    Where the truth is beyond the range of ``dtype``, or infinite, any result that is not finite passes.
    """
    most = float(torch.finfo(getattr(torch, dtype)).max)
    for part, words in ((1, ""), (2, "gradient: ")):
        for mine, right, true in zip(ours[part], theirs[part], truth[part], strict=True):
            if mine is None or right is None or true is None:
                continue
            one, other, exact = (np.asarray(array(x), "f8") for x in (mine, right, true))
            rtol, atol = TOLERANCES.get(dtype, TOLERANCES["float32"])
            usual = np.abs(other[np.abs(other) < most / 1e6]).max(initial=1.0)
            same = np.isclose(one, other, rtol, atol * usual, equal_nan=True)
            same |= np.isclose(one, exact, rtol, atol * usual, equal_nan=True)
            same |= ~np.isfinite(one) & (np.abs(exact) > most)
            if not same.all():
                at = np.unravel_index(int(np.argmin(same)), same.shape)
                return (f"{words}{one[at]:.8g} for {other[at]:.8g}, in float64 {exact[at]:.8g}, "
                        f"at {tuple(map(int, at))}, {int((~same).sum())} of {same.size}")
    return ""


def farther(ours: Run, theirs: Run, truth: Run) -> str:
    """Return text where minidl's bfloat16 result is worse than PyTorch's, empty if it is nowhere.

    It is worse if it is more than twice as far from the float32 result ``truth`` as PyTorch's bfloat16 is.
    """
    for mine, right in zip(ours[1], theirs[1], strict=True):
        if name_of(mine) != name_of(right):
            return f"dtype {name_of(mine)} for {name_of(right)}"
    for mine, right, true in ((a, b, c) for i in (1, 2) for a, b, c in zip(ours[i], theirs[i], truth[i], strict=True)):
        if mine is None or right is None:
            continue
        one, other, exact = array(mine), array(right), array(true)
        if exact.dtype.kind != "f":
            if not np.array_equal(one, other):
                return f"values {one.ravel()[:6]} for {other.ravel()[:6]}"
            continue
        errors = [np.nan_to_num(np.abs(np.asarray(x, "f8") - exact), posinf=1e30).max(initial=0.0)
                  for x in (one, other)]
        if errors[0] > 2 * errors[1] + 0.06 * max(1.0, float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))):
            return f"an error of {errors[0]:.3g} where PyTorch has {errors[1]:.3g}"
    return ""


def refusal(error: Exception) -> str:
    """Return ``refused`` for an error that says what minidl does not take, ``unclear`` for any other error."""
    if "is gone" in str(error):  # an operand that minidl itself has donated
        return "unclear"
    if isinstance(error, UserError | NotImplementedError):
        return "refused"
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        return "refused"
    return "unclear"


_kept: list[minidl.Runtime] = []


def runtime() -> minidl.Runtime:
    """Return a runtime that many cases share, since making one takes longer than most cases."""
    if not _kept:
        _kept.append(minidl.Runtime("cpu", memory_budget="64MiB", policy="none"))
    return _kept[0]


def forget() -> None:
    """Make later cases use a new runtime, so that nothing left by a failed case reaches them."""
    _kept.clear()


def outcome(op: str, form: str, name: str, dtype: str, number: int, sample: SampleInput, edge: bool = False) -> Outcome:
    """Run one sample with both libraries; return the outcome. edge: True compares with float64, too."""
    given = (sample.input, tuple(sample.args), dict(sample.kwargs))
    shown = re.sub(r"\s+", " ", str(sample.summary()))[:300]

    def ended(kind: str, words: str = "") -> Outcome:
        return Outcome(op, form, dtype, number, kind, re.sub(r"\s+", " ", words)[:300], shown)
    differentiated = dtype in TOLERANCES and any(t.requires_grad for t in leaves(list(given), torch.Tensor))
    right: Run | None = None
    try:
        right = run(torch, form, name, in_theirs(given, differentiated), differentiated)
    except Exception:
        if differentiated:
            try:
                right = run(torch, form, name, in_theirs(given, False), False)
            except Exception:
                right = None
            differentiated = False
    if right is not None and any(name_of(t) not in DTYPES for t in right[1]):
        return ended("both refuse", "a dtype that minidl does not have")
    try:
        with runtime():
            mine = in_ours(given)
            if not differentiated:
                for t in leaves(list(mine), Tensor):
                    t.requires_grad = False
            ours = run(minidl, form, name, mine, differentiated)
            if right is None:
                for t in ours[1]:
                    t.numpy()
                return ended("both refuse", "only PyTorch refuses")
            words = compared(ours, right, dtype)
            if words and edge and len(ours[1]) == len(right[1]) and not words.startswith(("shape", "dtype")):
                wide = run(torch, form, name, widened(given, differentiated, torch.float64), differentiated)
                words = amiss(ours, right, wide, dtype)
            elif words and dtype == "bfloat16":
                words = farther(ours, right, run(torch, form, name, widened(given, differentiated), differentiated))
            if any(name.startswith(begins) and words.startswith(how) for begins, how, _ in LISTED):
                return ended("listed", words)
            return ended("wrong" if words else "pass", words)
    except Exception as error:
        forget()
        if right is None:
            return ended("both refuse")
        return ended(refusal(error), f"{type(error).__name__}: {error}")


def forms(op: OpInfo) -> Iterator[str]:
    """Yield the forms in which both libraries have an operation: function, method, method in place."""
    if callable(found(minidl, op.name)) and callable(found(torch, op.name)):
        yield "function"
    if hasattr(Tensor, op.name) and callable(getattr(torch.Tensor, op.name, None)):
        yield "method"
    if hasattr(Tensor, f"{op.name}_") and hasattr(torch.Tensor, f"{op.name}_"):
        yield "in place"


def samples(op: OpInfo, dtype: str, most: int) -> Iterator[tuple[int, SampleInput]]:
    """Yield at most ``most`` samples of an operation in a dtype, with their numbers; meanwhile no warning is shown.
    Samples without an input that both libraries take, or with dropout, are left out."""
    kind = getattr(torch, dtype)
    if kind not in op.dtypes:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        differentiated = kind in op.backward_dtypes and kind.is_floating_point
        found = list(islice(op.sample_inputs("cpu", kind, requires_grad=differentiated), most))
        for number, sample in enumerate(found):
            taken = isinstance(sample.input, torch.Tensor | list | tuple | int | float)
            if taken and not sample.kwargs.get("dropout_p"):
                yield number, sample


def cases(most: int, dtypes: tuple[str, ...] = DTYPES_TRIED, only: str | None = None) -> Iterator[Outcome]:
    """Yield the outcomes of at most ``most`` samples of each operation, form and dtype."""
    for key, op in names().items():
        for dtype in dtypes if only in (None, op.name) else ():
            for number, sample in samples(op, dtype, most):
                for form in forms(op):
                    if form == "function" or isinstance(sample.input, torch.Tensor):
                        yield outcome(key, form, op.name, dtype, number, sample)


def counted(outcomes: Iterator[Outcome]) -> Counter[tuple[str, str]]:
    """Count how many cases of each dtype ended in each way."""
    return Counter((case.dtype, case.kind) for case in outcomes)
