"""Random programs in PyTorch: the same steps, and the same numbers within float64 error."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from program_machine import Machine, Wrong
from program_ops import KINDS, concrete
from program_runs import reference, shrink
from whole_programs import Program, Step

STRICTER = (  # errors of PyTorch where minidl raises none
    "modified by an inplace operation",  # a bias, say, which it keeps though no gradient needs it
    "through the graph a second time",  # also where calls have saved nothing, such as a scaling
    "view was created in no_grad mode",  # and its base was written since
    "does not have a grad_fn",  # of a view that was made before its base had to have a gradient
    "change requires_grad flags of leaf",  # of what was written under no_grad, which has no graph here any more
)
TOLERANCE = 1e-7  # in float64, relative to the largest of a tensor and to 1


class Peer(Machine):
    """PyTorch on the CPU, in float64."""

    errors = (RuntimeError, IndexError, ValueError)

    def __init__(self, of: Program, torch: Any, left_out: frozenset[tuple[int, int]]) -> None:
        super().__init__(of, "float64", left_out)
        self.torch = torch
        self.active = self.iteration = nullcontext
        self.no_grad = torch.no_grad

    def start(self) -> None:
        torch, rng = self.torch, np.random.default_rng(self.of.seed)
        self.persistent = {n: torch.tensor(rng.uniform(-1, 1, concrete(s, 1)), requires_grad=True)
                           for n, s in self.of.parameters}
        self.persistent |= {n: torch.ones(concrete(s, 1), dtype=torch.float64) for n, s in self.of.buffers}
        self.persistent |= {n: torch.tensor(rng.uniform(-1, 1, concrete(s, 1))) for n, s in self.of.constants}
        for n, of in self.of.views:
            whole = self.persistent[of]
            self.persistent[n] = whole.permute(tuple(reversed(range(whole.ndim))))
        make = {"sgd": lambda ps: torch.optim.SGD(ps, lr=0.05),
                "momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
                "adam": lambda ps: torch.optim.Adam(ps, lr=0.01)}
        self.optimizers = [make[kind]([self.persistent[n] for n in numbers]) for kind, numbers in self.of.optimizers]

    def boundary(self) -> None:
        """Detach all values at the end of an iteration; a view of a parameter stays a view."""
        self.kept = {n: value if _lasts(value) else value.detach() for n, value in self.kept.items()}

    def may_refuse(self, step: Step, error: Exception) -> bool:
        return step.kind == "bad"

    def leaf(self, values: np.ndarray) -> Any:
        return self.torch.tensor(values)

    def array(self, value: Any) -> np.ndarray:
        array: np.ndarray = value.detach().numpy().copy()
        return array

    def constant(self, value: Any) -> Any:
        return value.detach().clone()  # PyTorch may adopt the given gradient's bytes as the leaf's own

    def call(self, kind: str, read: list[Any], attrs: dict[str, Any]) -> Any:
        peer = KINDS[kind].peer
        if peer is None:
            raise Unlike(f"{kind} is random")
        return peer(self.torch, *read, **attrs)

    def bad(self, what: str) -> Any:
        torch = self.torch
        if what == "shape":
            return torch.ones(2, 3) @ torch.ones(2, 3)
        rows = torch.tensor([0, 9])
        if what == "label":
            return torch.nn.functional.cross_entropy(torch.ones(2, 3), rows)
        return torch.nn.functional.embedding(rows, torch.ones(3, 2)).tanh()

    def loss(self, x: Any) -> Any:
        return self.torch.tanh(x).mean() if x.numel() else self.torch.tanh(x).sum()

    def write(self, kind: str, target: Any, source: Any) -> None:
        root = target if target._base is None else target._base
        with self.torch.no_grad() if root.is_leaf and root.requires_grad else nullcontext():
            if kind == "fill_":
                target.fill_(0.5)
            else:
                getattr(target, kind)(source)

    def clip(self, parameters: list[Any]) -> None:
        norm = self.torch.sqrt(sum((p.grad ** 2).sum() for p in parameters if p.grad is not None)
                               + self.torch.zeros((), dtype=self.torch.float64))
        for p in parameters:
            if p.grad is not None:
                p.grad = p.grad * (0.5 / max(norm, self.torch.tensor(0.5, dtype=self.torch.float64)))

    def forget_gradient(self, value: Any) -> None:
        if value.is_leaf:
            value.grad = None


class Unlike(Exception):
    """Raised where the rest of a program cannot be compared."""


def _lasts(value: Any) -> bool:
    root = value if value._base is None else value._base
    return bool(value.is_leaf or root.is_leaf and value.requires_grad)


def check_with_peer(of: Program, torch: Any) -> bool:
    """``compare_with_peer``, with the smallest failing program as a note on its error."""
    try:
        return compare_with_peer(of, torch)
    except Exception as error:
        error.add_note(str(shrink(of, partial(_differs, torch=torch))))
        raise


def _differs(of: Program, *, torch: Any) -> bool:
    try:
        compare_with_peer(of, torch)
    except Exception:
        return True
    return False


def compare_with_peer(of: Program, torch: Any) -> bool:
    """Compare with PyTorch; raise Wrong if numbers differ, return True if the whole program was compared."""
    ours = reference(of, "float64")
    peer = Peer(of, torch, frozenset(ours.refused))
    whole = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in peer.iterations():
                pass
    except Unlike:
        whole = False
    except RuntimeError as error:
        if not any(text in str(error) for text in STRICTER):
            raise
        whole = False
    for index, (found, wanted) in enumerate(zip(ours.seen, peer.seen, strict=False)):
        if isinstance(found, str) or isinstance(wanted, str):
            if found != wanted:
                raise Wrong(f"value {index} is {found!r} here and {wanted!r} in PyTorch")
            continue
        scale = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=0.0, atol=TOLERANCE * scale,
                                                          equal_nan=True):
            raise Wrong(f"value {index} differs from PyTorch's: {found} and {wanted}")
    return whole
