"""Attention as one graph of cuDNN: where there is one, its plan, and what is issued.

cuDNN computes it in halves alone, on operands that are dense, and counts its own random numbers (Philox) from two
64-bit numbers on the device. So before it come, where they are needed,

    a copy    of an operand that lies otherwise, into the workspace
    a fill    of these two numbers, with the key of the operation's seed: a replay drops what was dropped before, and
              so does the gradient, whose random numbers are the same by cuDNN's contract

The plan is the first that adds in a fixed order, by the order of cuDNN's heuristics; it is kept on disk. A shape for
which the operation or its gradient has none is not for this file: there attention is composed of products. Knows metas
and plans.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minidl.device.cuda.plan_files import PlanFile
from minidl.device.cuda.seam import Attention, PlanInfo, Vendor
from minidl.errors import UserError
from minidl.kernels.random import fold_seed
from minidl.meta import Meta, aligned, meta
from minidl.outside.validation import is_whole

ATTEND, GRADIENT = "scaled_dot_product_attention", "scaled_dot_product_attention_grad"
OPERATIONS = (ATTEND, GRADIENT)
HALVES = ("bfloat16", "float16")
ALIGNMENT = 16  # bytes, of cuDNN's operands
SEED_BYTES = aligned(16)


@dataclass(frozen=True, slots=True)
class Steps:
    """How one call is carried out. Positions count the operands: outputs first, then inputs.

    copied   (position, offset in the workspace, meta of the copy) of operands that cuDNN cannot read where they lie
    seed     where in the workspace its random numbers start from; None without dropout
    scratch  bytes of workspace before that of the plan
    """

    attention: Attention
    copied: tuple[tuple[int, int, Meta], ...]
    seed: int | None
    scratch: int


def describe(q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> Attention | None:
    """Attention of these operands in cuDNN's terms; None for a dtype or a mask that it does not take at all."""
    n, length, width = q.shape
    keys = k.shape[1]
    if q.dtype.name not in HALVES or not q.size or not k.size:
        return None
    extents = None if mask is None else (1,) * (4 - len(mask.shape)) + mask.shape
    if extents is not None and extents[3] != keys:
        return None
    return Attention(False, q.dtype.name, n, heads, length, keys, width // heads, causal, p, extents,
                     None if mask is None else mask.dtype.name)


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan as it is kept on disk; no name where cuDNN does not support it."""

    name: str | None = None
    workspace: int = 0


class AttentionPlans:
    """The plan for each attention that was asked for; each is asked for once, and kept in ``folder``, as the plans of
    convolutions are (``timed_plans``). None keeps them for this process only."""

    def __init__(self, vendor: Vendor, folder: Path | None = None) -> None:
        self._vendor = vendor
        self._chosen: dict[Attention, PlanInfo | None] = {}
        self._fits: dict[tuple[Any, ...], bool] = {}
        self._file = PlanFile(folder, vendor.properties, "attention")
        kept = self._file.read(dict[str, KeptPlan]) or {}
        self._kept = kept if all(is_whole(plan.workspace) for plan in kept.values()) else {}

    def fits(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Whether cuDNN has a plan for attention of these operands, and one for its gradient. Raises DeviceError where
        it should have, and fails."""
        key = q, k, mask, heads, causal, p
        fits = self._fits.get(key)
        if fits is None:
            found = describe(q, k, mask, heads=heads, causal=causal, p=p)
            fits = self._fits[key] = found is not None and None not in (
                self._plan(found), self._plan(replace(found, gradient=True)))
        return fits

    def of(self, attention: Attention) -> PlanInfo:
        """The plan. Raises UserError where there is none."""
        plan = self._plan(attention)
        if plan is None:
            raise UserError(f"cuDNN has no plan that adds in a fixed order for {attention}: compose it, as nn.attend "
                            "does")
        return plan

    def _plan(self, attention: Attention) -> PlanInfo | None:
        if attention in self._chosen:
            return self._chosen[attention]
        key = text(attention)
        kept = self._kept.get(key)
        if kept is None:
            found = self._vendor.attention_plan(attention)
            kept = self._kept[key] = KeptPlan() if found is None else KeptPlan(found.name, found.workspace)
            self._file.write({name: asdict(plan) for name, plan in self._kept.items()})
        plan = None if kept.name is None else PlanInfo(kept.name, kept.workspace, deterministic=True)
        self._chosen[attention] = plan
        return plan


def text(a: Attention) -> str:
    """An attention as text."""
    mask = "" if a.mask is None else f" mask {a.mask_dtype} {'x'.join(map(str, a.mask))}"
    return (f"{'gradient' if a.gradient else 'forward'} {a.dtype} n {a.n} heads {a.heads} length {a.length} "
            f"keys {a.keys} depth {a.depth}{' causal' if a.causal else ''} dropout {a.dropout!r}{mask}")


def steps(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any]) -> Steps:
    """What a call of OPERATIONS needs beside a plan. Raises UserError for what cuDNN does not take."""
    gradient = op_name == GRADIENT
    q, k = inputs[gradient], inputs[1 + gradient]
    count = 6 if gradient else 3
    mask = inputs[count] if len(inputs) > count else None
    found = describe(q, k, mask, heads=attrs["heads"], causal=attrs["causal"], p=attrs["p"])
    if found is None:
        raise UserError(f"{op_name} of {q} with the mask {mask} on a GPU: cuDNN has it for {' and '.join(HALVES)}, and "
                        "masks with an element a key; compose it, as nn.attend does")
    scratch, copied = 0, []
    for position, m in enumerate(inputs, len(outputs)):
        if not m.contiguous or m.offset * m.dtype.itemsize % ALIGNMENT:
            copied.append((position, scratch, meta(m.shape, m.dtype)))
            scratch += aligned(m.nbytes)
    seed = scratch if attrs["p"] else None
    return Steps(replace(found, gradient=gradient), tuple(copied), seed, scratch + (SEED_BYTES if attrs["p"] else 0))


Copy = Callable[[Sequence[int]], None]  # a kernel on these addresses, outputs first
Fill = Callable[[int, int], None]  # both numbers at an address become this


def issue(found: Steps, pointers: Sequence[int], seed: int, workspace: int, *, attend: Callable[..., None],
          copies: Sequence[Copy], fill: Fill) -> None:
    """Give a call to the compute stream. ``attend`` takes the addresses of the operands, of the seed, of the plan's
    workspace."""
    at = list(pointers)
    for (position, offset, _), copy in zip(found.copied, copies, strict=True):
        copy((workspace + offset, at[position]))
        at[position] = workspace + offset
    key = workspace
    if found.seed is not None:
        key += found.seed
        fill(key, fold_seed(seed))
    attend(at, key, workspace + found.scratch)
