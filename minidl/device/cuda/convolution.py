"""Convolutions as plans of cuDNN: which alternatives there are, the workspace of each, and what is issued.

cuDNN computes y, dx or dw from two operands that lie channels-last, and nothing else. The rest is made of kernels:

    an operand that lies otherwise     is copied into the workspace first
    a bias, a ReLU                     follow in one pass over the result, in place
    ``onto`` (a gradient to add to)    is added to the result; as it may lie in the same bytes, the result is made in
                                       the workspace, one part of the batch after the other, so that it is a small one
    more elements than cuDNN counts    are parts of the batch as well; of a weight's gradient the first part's is the
                                       result, to which those of the others are added in turn

Bits: every plan is a class of its own. The deterministic mode uses the first one that adds in a fixed order and needs
little workspace, by the order of cuDNN's heuristics and not by time: so it is the same plan in every process. The fast
mode may choose from all. Knows metas and plans; where operands lie is told when work is issued.
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
MOST_WORKSPACE = 16 * 2**20  # bytes of the deterministic plan, where there is one with as little
RANK_SECONDS = 0.05  # how much slower than the best plan each further one is taken to be: a guess
PART_BYTES = 64 * 2**20  # of a gradient that is made beside the one it is added to: enough to fill a GPU
MOST_ELEMENTS = 2**31 - 1  # of a tensor: cuDNN counts them in 32 bits


@dataclass(frozen=True, slots=True)
class Steps:
    """How one convolution is carried out. Positions count the operands: the output is 0, the inputs follow.

    convolution  of one part of the batch; ``parts`` of them make it whole
    roles        positions of x, w and y
    copied       (position, offset in the workspace, meta of the copy) of operands that do not lie channels-last
    result       where in the workspace a part's result is made (of a weight's gradient all but the first part's);
                 None: it is made in the output
    bias, onto   positions of what is added to the result, if anything
    relu         the positive part of the result is wanted
    scratch      bytes of workspace before that of the plan
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


def steps(op_name: str, inputs: Sequence[Meta], output: Meta, attrs: dict[str, Any], *, tf32: bool) -> Steps:
    """What a call needs beside a plan."""
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
        if not (m.contiguous or is_channels_last(m)):  # else a part of the batch is one piece of it too
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
    return Steps(convolution, parts, (role.x, role.w, role.y), tuple(copied), result, bias, onto, role.relu, scratch)


def _parts(images: int, elements: int, beside_bytes: int) -> int:
    """In how many equal parts a batch is cut: such that cuDNN can count the elements of the largest tensor, and that
    what is made beside the result is small."""
    return next(p for p in range(1, images + 1) if images % p == 0 and (
        p == images or elements // p <= MOST_ELEMENTS and beside_bytes // p <= PART_BYTES))


def algorithms(found: Steps, plans: Sequence[TimedPlan], seconds: float) -> tuple[Algorithm, ...]:
    """The alternatives: the deterministic mode's first, then the others, fastest first. Raises DeviceError.

    seconds: modelled time of the call, where a plan was not timed (``chosen``).
    """
    if not any(plan.deterministic for plan in plans):
        what = "only plans that add in no fixed order" if plans else "no plan"
        raise DeviceError(f"cuDNN has {what} for {found.convolution}")
    return tuple([Algorithm(p.name, found.parts * (p.seconds or 0.0), found.scratch + aligned(p.workspace), p.name)
                  for p in chosen(plans, seconds / found.parts)])


def chosen(plans: Sequence[TimedPlan], seconds: float) -> list[TimedPlan]:
    """The deterministic mode's plan, then those that none of the others beats both in time and in workspace.

    seconds: modelled time of the plan that the heuristics like best, where plans were not timed. Each further plan is
    taken to need RANK_SECONDS of it more, so that modelled times keep cuDNN's order.
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
        if plan.workspace < least:  # else a faster one needs no more
            least = plan.workspace
            if plan is not first:
                found.append(plan)
    return found


Convolve = Callable[[Convolution, str, int, int, int, int], None]  # x, w, y and the plan's workspace as addresses
Copy = Callable[[Sequence[int]], None]  # a kernel on these addresses, outputs first


def issue(found: Steps, plan: str, pointers: Sequence[int], workspace: int, *, convolve: Convolve,
          copies: Sequence[Copy], finish: Copy | None) -> None:
    """Give a call to the compute stream. Addresses are in the order of ``Steps``' positions.

    copies: by entry of ``copied``; finish: what follows the product, (result, product, what is added if anything is):
    of a part of the batch if it is made beside the result, else of the whole.
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
    """Bytes of a dense tensor."""
    return prod(shape) * DTYPES[dtype].itemsize
