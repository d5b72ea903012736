"""Changes of a PyTorch program that lower its memory, each with what it saves and costs: the advice of ``minidl fit``.

Three changes are made to the program, which is then recorded again on fake tensors: bfloat16, gradient checkpoints, and
half of the batch at a time. Two are computed from its own trace: optimizer states on the host between steps, and a
plan of minidl's. The largest batch is computed from the bytes that grow with the batch and those that do not.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from minidl.lab import cell, sources
from minidl.lab.cell import Machine
from minidl.lab.fitting import peak
from minidl.lab.torch_capture import Look, look
from minidl.lab.torch_programs import Asked
from minidl.lab.torch_seen import Layer
from minidl.outside.stages import stage
from minidl.plan.trace import Trace

BLOCK = re.compile(r"(.*?\.)?\d+(?=\.)")  # of a path: the outermost part that is numbered, such as ``layer1.0``
LEAST = 0.02  # of the peak: a change that saves less is not told; nor is a block checkpointed that holds less
SHARES = (0.6, 0.8)  # of the peak, for which a plan is asked


@dataclass(frozen=True)
class Change:
    """One way to run the program, as text. peak_bytes, seconds: of a step at the program's batch; ``seconds`` are those
    of its calls on the machine, and of copies for which they wait. batch: about the largest that then fits."""

    text: str
    peak_bytes: int
    seconds: float
    batch: int


def changes(name: str, batch: int, machine: Machine, memory: int, asked: Asked, now: Look) -> list[Change]:
    """Return the program as it is, then the changes that save over 2% of its peak, fewest seconds per saved byte first.
    name: without ``torch:``. memory: bytes of the device. asked, now: how it was recorded, and the record."""
    profile, trace = machine.described(), now.trace
    states, gradients = (sum(getattr(layer, kind) for layer in now.layers) for kind in ("states", "gradients"))
    held = sum(t.nbytes for t in trace.tensors.values() if t.persistent) + gradients

    def at(text: str, other: Trace, *, fixed: int = held, seconds: float | None = None) -> Change:
        grows = max(peak(other) - fixed, 1)
        return Change(text, peak(other), other.seconds if seconds is None else seconds,
                      max(0, (memory - fixed) * batch // grows))

    def again(what: str, count: int = batch, **settings: object) -> Trace:
        with stage(f"taking the step of {name} {what}"):
            found = look(name, count, machine.profile, replace(asked, **settings))  # type: ignore[arg-type]
        return sources.checked(found.trace)

    first = at("as it is", trace)
    found = []
    if "bfloat16" not in now.assumed["precision"]:
        found.append(at("torch.autocast to bfloat16", again("in bfloat16", precision="bf16")))
    if blocks := blocks_of(now.layers, first.peak_bytes):
        found.append(at(f"torch.utils.checkpoint of {shortly(blocks)}", again("with checkpoints", checkpointed=blocks)))
    if batch > 1:
        half = again("at half of the batch", batch // 2)
        part = at("", half)
        found.append(Change("accumulate gradients of 2 halves of the batch", part.peak_bytes + gradients,
                            2 * half.seconds, 2 * max(0, (memory - held) * (batch // 2)
                                                      // max(part.peak_bytes + gradients - held, 1))))
    if states:
        away = replace(first, text="optimizer states on the host between steps",
                       peak_bytes=max(first.peak_bytes - states, held - states + gradients),
                       seconds=first.seconds + states / profile.link_out_bandwidth + states / profile.link_in_bandwidth)
        found.append(replace(away, batch=max(0, (memory - held + states) * batch // max(first.peak_bytes - held, 1))))
    if (planned := _planned(name, trace, machine, first, held, batch, memory)) is not None:
        found.append(planned)
    saving = [each for each in found if first.peak_bytes - each.peak_bytes > LEAST * first.peak_bytes]
    return [first, *sorted(saving, key=lambda each: (each.seconds - first.seconds)
                           / (first.peak_bytes - each.peak_bytes))]


def _planned(name: str, trace: Trace, machine: Machine, first: Change, held: int, batch: int, memory: int
             ) -> Change | None:
    for share in SHARES:
        budget = int(share * first.peak_bytes)
        row = cell.run(name, trace, machine, "auto", budget)
        if row.status == "ok" and row.settled_s:
            return Change(f"a plan of minidl's in {share:.0%} of the memory", budget, row.settled_s,
                          max(0, int(memory / share - held) * batch // max(first.peak_bytes - held, 1)))
    return None


def blocks_of(layers: Iterable[Layer], total: int) -> tuple[str, ...]:
    """Return the paths of the outermost numbered modules with parts of their own, such as ``layer1.0``, if they hold
    at least LEAST (2%) of ``total`` bytes in activations."""
    held: dict[str, int] = {}
    for layer in layers:
        if found := BLOCK.match(layer.path):
            held[found[0]] = held.get(found[0], 0) + layer.activations
    return tuple(path for path, nbytes in held.items() if nbytes >= LEAST * total)


def shortly(paths: tuple[str, ...]) -> str:
    """Return the paths in one phrase, with the middle of a long list left out."""
    return ", ".join(paths) if len(paths) < 4 else f"{paths[0]}, {paths[1]}, ... {paths[-1]} ({len(paths)} blocks)"
