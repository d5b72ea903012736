"""Convolutions as plans of cuDNN: the algorithms of a call, their workspaces, and the work that a call issues.

cuDNN computes y, dx or dw from two channels-last operands, and nothing else. Kernels do the rest:

  an operand in another layout       is copied into the workspace first
  a bias, a ReLU                     follow in one pass over the result, in place
  ``onto`` (a gradient to add to)    is added to the result. It may share the result's bytes, so the result is first
                                     computed in the workspace, in small parts of the batch
  a tensor with too many elements    is computed in parts of the batch as well. Of a weight's gradient the first part's
                                     result goes to the output, and those of the other parts are added to it

Bits: every plan is a bits class of its own. The deterministic mode uses the first plan, in the order of cuDNN's
heuristics, that adds in a fixed order and needs little workspace. Times do not matter, so every process picks the same
plan. The fast mode may choose any plan. Knows metas and plans; addresses are given when work is issued.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from minidl.device.cuda.memory_format import channels_last, is_channels_last
from minidl.device.cuda.seam import Convolution
from minidl.device.cuda.timed_plans import TimedPlan
from minidl.errors import DeviceError
from minidl.kernels.roles import ROLES
from minidl.meta import DTYPES, Algorithm, Meta, aligned, meta

KINDS = tuple(ROLES)  # the operations that are convolutions
MOST_WORKSPACE = 16 * 2**20  # bytes of the deterministic plan, if a plan needs so little
RANK_SECONDS = 0.05  # each plan is assumed to be slower than the plan before it by this share of the best: a guess
PART_BYTES = 64 * 2**20  # of a gradient in the workspace that is added to another one: enough to fill a GPU
MOST_ELEMENTS = 2**31 - 1  # of a tensor: cuDNN counts them in 32 bits


@dataclass(frozen=True, slots=True)
class ConvolutionSteps:
    """The work of one convolution. Positions count the operands: the output is 0, the inputs follow.

    convolution  cuDNN's description, for one part of the batch; ``parts`` of them are the whole batch
    roles        positions of x, w and y
    copied       (position, offset in the workspace, meta of the copy) of operands that are not channels-last
    result       workspace offset of a part's result (of a weight's gradient: of all parts but the first);
                 None: the result goes to the output
    bias, onto   positions of the operands that are added to the result, if any
    relu         True if a ReLU follows
    scratch      bytes of workspace before the plan's own workspace
    """

    convolution: Convolution
    parts: int
    roles: tuple[int, int, int]
    copied: tuple[tuple[int, int, Meta], ...]
    result: int | None
    bias: int | None
    onto: int | None
    relu: bool
    scratch: int


def steps(op_name: str, inputs: Sequence[Meta], output: Meta, attrs: dict[str, Any], *, tf32: bool) -> ConvolutionSteps:
    """Return the work of a convolution: cuDNN's on each part of the batch, and that of kernels before and after it.
    Kernels copy operands to channels-last, add a bias or ``onto``, apply ReLU. tf32: float32 may be rounded to TF32."""
    operands, role = (output, *inputs), ROLES[op_name]
    x, w, y = role.pick(output, inputs)
    scratch, copied = 0, []
    for position in (1, 2):
        m = operands[position]
        if not is_channels_last(m):
            copied.append((position, scratch, channels_last(meta(m.shape, m.dtype))))
            scratch += aligned(m.nbytes)
    if not is_channels_last(output):
        raise AssertionError(f"{op_name} into {output}, which is not channels-last")
    third = 3 if len(inputs) > 2 else None
    onto = third if role.kind == "conv2d_dgrad" else None
    images, result = x.shape[0], None
    if onto is not None:
        m = operands[onto]
        if not (m.contiguous or is_channels_last(m)):  # in both layouts a part of the batch is one contiguous piece
            copied.append((onto, scratch, channels_last(meta(m.shape, m.dtype))))
            scratch += aligned(m.nbytes)
    parts = _parts(images, max(x.size, y.size), output.nbytes if onto is not None else 0)
    if onto is not None or role.kind == "conv2d_wgrad" and parts > 1:
        result = scratch
        scratch += aligned(output.nbytes if role.kind == "conv2d_wgrad" else output.nbytes // parts)
    stride, padding = tuple(attrs["stride"]), tuple(attrs["padding"])
    part = images // parts
    convolution = Convolution(role.kind, output.dtype.name, (part, *x.shape[1:]), w.shape, (part, *y.shape[1:]),
                              (stride[0], stride[1]), (padding[0], padding[1]), tf32 and output.dtype.name == "float32")
    bias = third if role.kind == "conv2d" else None
    return ConvolutionSteps(convolution, parts, (role.x, role.w, role.y), tuple(copied), result, bias, onto, role.relu,
                            scratch)


def _parts(images: int, elements: int, beside_bytes: int) -> int:
    """Return the smallest number of equal parts of a batch that are within the limits on elements and workspace.
    If no number of parts is within the limits, return one part per image."""
    return next(p for p in range(1, images + 1) if images % p == 0 and (
        p == images or elements // p <= MOST_ELEMENTS and beside_bytes // p <= PART_BYTES))


def algorithms(found: ConvolutionSteps, plans: Sequence[TimedPlan], seconds: float) -> tuple[Algorithm, ...]:
    """Return a convolution's algorithms: the deterministic mode's first, then the others, fastest first.

    found: its ``steps``. seconds: modelled time of the call, used if a plan was not timed (``chosen``). Raises
    DeviceError if no plan adds in a fixed order.
    """
    if not any(plan.deterministic for plan in plans):
        what = "only plans that add in no fixed order" if plans else "no plan"
        raise DeviceError(f"cuDNN has {what} for {found.convolution}")
    return tuple([Algorithm(p.name, found.parts * (p.seconds or 0.0), found.scratch + aligned(p.workspace), p.name)
                  for p in chosen(plans, seconds / found.parts)])


def chosen(plans: Sequence[TimedPlan], seconds: float) -> list[TimedPlan]:
    """Return the deterministic mode's plan, then those that none beats in both time and workspace, fastest first.

    seconds: modelled time of the heuristics' best plan, if plans were not timed. Each further plan is assumed to need
    RANK_SECONDS of it more, so that modelled times keep cuDNN's order.
    """
    timed = []
    for place, plan in enumerate(plans):
        rank = place if plan.rank is None else plan.rank
        timed.append(plan if plan.seconds is not None else
                     replace(plan, seconds=seconds * (1 + rank * RANK_SECONDS)))
    fixed = [p for p in timed if p.deterministic]
    first = next((p for p in fixed if p.workspace <= MOST_WORKSPACE), None) or min(fixed, key=lambda p: p.workspace)
    found, least = [first], inf
    for plan in sorted(timed, key=lambda p: p.seconds or 0.0):
        if plan.workspace < least:  # otherwise a faster plan needs no more workspace
            least = plan.workspace
            if plan is not first:
                found.append(plan)
    return found


Convolve = Callable[[Convolution, str, int, int, int, int], None]  # x, w, y and the plan's workspace as addresses
Copy = Callable[[Sequence[int]], None]  # a kernel on these addresses, outputs first


def issue(found: ConvolutionSteps, plan: str, pointers: Sequence[int], workspace: int, *, convolve: Convolve,
          copies: Sequence[Copy], finish: Copy | None) -> None:
    """Issue a call to the compute stream. Addresses are in the order of ``ConvolutionSteps``' positions.

    copies: one for each entry of ``copied``. finish: the kernel after the product, on (result, product, and what is
    added if anything is); it gets one part of the batch if the product is in the workspace, else the whole.
    """
    at = list(pointers)
    for (position, offset, _), copy in zip(found.copied, copies, strict=True):
        copy((workspace + offset, at[position]))
        at[position] = workspace + offset
    c, output, rest = found.convolution, at[0], workspace + found.scratch
    x, w, y = (at[i] for i in found.roles)
    x_step, y_step = part_bytes(c.x, c.dtype), part_bytes(c.y, c.dtype)
    for part in range(found.parts):
        operands = [x + part * x_step, w, y + part * y_step]
        beside = found.result is not None and (found.onto is not None or part > 0)
        if beside:
            operands[found.roles.index(0)] = made = workspace + (found.result or 0)
        convolve(c, plan, operands[0], operands[1], operands[2], rest)
        if beside:
            assert finish is not None
            finish((output, output, made) if found.onto is None else
                   (output + part * x_step, made, at[found.onto] + part * x_step))
    if finish is not None and found.result is None:
        finish((output, output) if found.bias is None else (output, output, at[found.bias]))


def part_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of a contiguous tensor."""
    return prod(shape) * DTYPES[dtype].itemsize
