"""Attention as one graph of cuDNN: whether cuDNN has a plan for it, which plan, and the work that a call issues.

cuDNN computes attention in half precision only, on operands with certain layouts, and generates its own random numbers
(Philox) from two 64-bit numbers on the device. So a call first issues, where needed,

  a copy    of an operand with another layout, into the workspace
  a fill    of these two numbers, from the operation's seed. A replay and the gradient use the same numbers, so they
            drop the same elements, as cuDNN guarantees

The plan is the first one, in the order of cuDNN's heuristics, that adds in a fixed order; it is kept on disk. Where
cuDNN has no plan for the operation or for its gradient, attention is composed of products elsewhere. Knows metas and
plans.
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
class AttentionSteps:
    """The work of one call of attention. Positions count the operands: outputs first, then inputs.

    copied   (position, offset in the workspace, meta of the copy) of operands whose layout cuDNN cannot read
    seed     workspace offset of the two numbers that seed cuDNN's random numbers; None without dropout
    scratch  bytes of workspace before the plan's own workspace
    """

    attention: Attention
    copied: tuple[tuple[int, int, Meta], ...]
    seed: int | None
    scratch: int


def describe(q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> Attention | None:
    """Return cuDNN's description of attention on these operands; None if they are empty or unsupported."""
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
    """A plan as stored on disk, its workspace in bytes; the name is None if cuDNN does not support the attention."""

    name: str | None = None
    workspace: int = 0


class AttentionPlans:
    """The plan for each attention, looked up in cuDNN once and stored in ``folder``; None stores nothing on disk."""

    def __init__(self, vendor: Vendor, folder: Path | None = None) -> None:
        self._vendor = vendor
        self._chosen: dict[Attention, PlanInfo | None] = {}
        self._fits: dict[tuple[Any, ...], bool] = {}
        self._file = PlanFile(folder, vendor.properties, "attention")
        kept = self._file.read(dict[str, KeptPlan]) or {}
        self._kept = kept if all(is_whole(plan.workspace) for plan in kept.values()) else {}

    def fits(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Return True if cuDNN has plans for this attention and its gradient. Raises DeviceError if cuDNN fails."""
        key = q, k, mask, heads, causal, p
        fits = self._fits.get(key)
        if fits is None:
            found = describe(q, k, mask, heads=heads, causal=causal, p=p)
            fits = self._fits[key] = found is not None and None not in (
                self._plan(found), self._plan(replace(found, gradient=True)))
        return fits

    def of(self, attention: Attention) -> PlanInfo:
        """Return an attention's cuDNN plan. Raises UserError if none adds in a fixed order, DeviceError on failure."""
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
    """Return an attention as text, the key of its plan on disk."""
    mask = "" if a.mask is None else f" mask {a.mask_dtype} {'x'.join(map(str, a.mask))}"
    return (f"{'gradient' if a.gradient else 'forward'} {a.dtype} n {a.n} heads {a.heads} length {a.length} "
            f"keys {a.keys} depth {a.depth}{' causal' if a.causal else ''} dropout {a.dropout!r}{mask}")


def steps(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any]) -> AttentionSteps:
    """Return how a call of OPERATIONS runs, except for its plan. Raises UserError where ``describe`` returns None."""
    gradient = op_name == GRADIENT
    q, k = inputs[gradient], inputs[1 + gradient]
    count = 6 if gradient else 3
    mask = inputs[count] if len(inputs) > count else None
    found = describe(q, k, mask, heads=attrs["heads"], causal=attrs["causal"], p=attrs["p"])
    if found is None:
        raise UserError(f"{op_name} of {q} with the mask {mask} on a GPU: cuDNN needs {' or '.join(HALVES)}, and a "
                        "mask with one element for each key; compose it, as nn.attend does")
    scratch, copied = 0, []
    for position, m in enumerate(inputs, len(outputs)):
        if not m.contiguous or m.offset * m.dtype.itemsize % ALIGNMENT:
            copied.append((position, scratch, meta(m.shape, m.dtype)))
            scratch += aligned(m.nbytes)
    seed = scratch if attrs["p"] else None
    return AttentionSteps(replace(found, gradient=gradient), tuple(copied), seed,
                          scratch + (SEED_BYTES if attrs["p"] else 0))


Copy = Callable[[Sequence[int]], None]  # a kernel on these addresses, outputs first
Fill = Callable[[int, int], None]  # (address, value): set both numbers at the address to the value


def issue(found: AttentionSteps, pointers: Sequence[int], seed: int, workspace: int, *, attend: Callable[..., None],
          copies: Sequence[Copy], fill: Fill) -> None:
    """Issue the steps of an attention call to the compute stream: copies of operands, the seed, and cuDNN's plan.

    pointers: the operands' addresses, outputs first. copies: one kernel for each of ``found.copied``. attend: called
    with the operands' addresses, the seed's address and that of the plan's workspace.
    """
    at = list(pointers)
    for (position, offset, _), copy in zip(found.copied, copies, strict=True):
        copy((workspace + offset, at[position]))
        at[position] = workspace + offset
    key = workspace
    if found.seed is not None:
        key += found.seed
        fill(key, fold_seed(seed))
    attend(at, key, workspace + found.scratch)
