"""Records one training step of a PyTorch program as a trace, on fake tensors: nothing is allocated (extra ``torch``).

PyTorch's fake tensors have shapes and no bytes; a dispatch mode above them sees every operation that runs, forward,
backward and optimizer, after autograd and composite operations have been taken apart. Each PyTorch storage becomes a
tensor of the trace; after a write in place it is another tensor in the same bytes (``functional``). An operation that
returns views of its inputs makes no tensor. A tensor ends when PyTorch frees its storage. Hooks on saved tensors tell
which tensors each call keeps for its gradient. Seconds are those of a device profile's cost model, or with ``measured``
those of a run of the same step with values on this CPU.

``torch_programs`` makes the step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from minidl.device import profiles
from minidl.device.cost_model import kernel_seconds
from minidl.device.profiles import Profile
from minidl.errors import UserError
from minidl.lab.functional import functional
from minidl.lab.inferred import live_bytes, with_lasting
from minidl.plan.trace import TensorId, Trace

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry
except ImportError:
    raise UserError('a PyTorch program takes PyTorch: pip install "minidl[torch]"') from None

from minidl.lab.torch_gpu import as_on_gpu
from minidl.lab.torch_optimizers import known_optimizers
from minidl.lab.torch_origins import Origin, Origins
from minidl.lab.torch_programs import Asked, Step, program
from minidl.lab.torch_seen import BACKWARD, OUTSIDE, Layer, Seen
from minidl.lab.torch_watch import CallWatch

PRECISIONS: dict[str, Any] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
KINDS = (("pool", "pool"), ("sum", "reduce"), ("mean", "reduce"), ("norm", "reduce"), ("softmax", "reduce"),
         ("loss", "reduce"), ("copy", "copy"), ("clone", "copy"), ("cat", "copy"))  # of work, by what a name has in it


# Seconds -------------------------------------------------------------------------------------------------------------
def modelled(profile: Profile, func: Any, args: Any, kwargs: Any, result: Any, took: float) -> float:
    """Return the seconds of an operation on a GPU with this profile, by minidl's cost model. ``took`` is not used."""
    tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
    nbytes = float(sum(t.numel() * t.element_size() for t in tensors))
    name = func._schema.name
    if "empty" in name or not nbytes:
        return 0.0
    count = flop_registry.get(func._overloadpacket)
    if count is not None:
        kind = "conv" if "conv" in name else "matmul"
        return kernel_seconds(profile, kind, float(count(*args, **kwargs, out_val=result)), nbytes)
    kind = next((kind for part, kind in KINDS if part in name), "elementwise")
    return kernel_seconds(profile, kind, 0.0, nbytes)


def measured(func: Any, args: Any, kwargs: Any, result: Any, took: float) -> float:
    """Return ``took``, the seconds that an operation took on this CPU; it stands in place of ``modelled``."""
    return took


# Records -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Look:
    """A recorded step: its trace, the memory of its layers, and topic -> a text about what was assumed.
    origins: tensor -> the module and the line of the program that made it, where known."""

    trace: Trace
    layers: tuple[Layer, ...]
    assumed: dict[str, str]
    origins: dict[TensorId, Origin]


def capture(name: str, batch: int, device: str = "p100", *, values: bool = False) -> Trace:
    """Return a program's second step, with the seconds of a profile, or of this CPU if ``values``.
    Raises UserError for a program that cannot be made."""
    if values:
        return record(lambda: program(name, batch), measured).trace
    return look(name, batch, device).trace


def look(name: str, batch: int, device: str, asked: Asked = Asked()) -> Look:  # noqa: B008, it is frozen
    """Run a program on fake tensors, as if there were a GPU; return a record of its second step.
    device: the profile that predicts seconds. Raises UserError for an unknown one, or a program that cannot be made."""
    profile = profiles.named(device.removeprefix("sim:"))
    seen = Seen()
    with FakeTensorMode(allow_non_fake_inputs=True), as_on_gpu(seen.autocasts.add), known_optimizers():
        return record(lambda: program(name, batch, asked), partial(modelled, profile), seen, asked)


def record(make: Callable[[], tuple[Step, Callable[[], list[Any]]]], price: Any, seen: Seen | None = None,
           asked: Asked = Asked()) -> Look:  # noqa: B008, it is frozen
    """Make a PyTorch program, run one step, and return the record of a second step.
    make: returns the step, and a function that returns the tensors that outlive the step. price: returns the seconds of
    a call, from the arguments that ``CallWatch`` names. seen: collects the program's modules and optimizers; default: a
    new one. asked: of its settings, precision and checkpoints count here; the others are for ``make``."""
    seen = seen or Seen()
    origins = Origins(seen, within=record)
    watch = CallWatch(price, origins.place)
    cast = PRECISIONS[asked.precision]
    with seen.looking(), torch.autocast("cpu", cast) if cast is not None else nullcontext():
        step, lasting = make()
        step()
        seen.checkpoint(asked.checkpointed)
        with watch, torch.autograd.graph.saved_tensors_hooks(watch.save, watch.take):
            watch.begin([*lasting(), *seen.lasting()])
            step()
            trace = watch.trace()
            watch.on = False
    made = with_lasting(functional(trace))
    return Look(made, tuple(seen.layers(_activations(trace, watch, seen))),
                {"precision": seen.precision(), "optimizer": seen.optimizer(),
                 "inputs": getattr(step, "inputs", "the program's own")}, origins.of(made, watch))


def _activations(trace: Trace, watch: CallWatch, seen: Seen) -> dict[str, int]:
    """Return path of a module -> bytes of its results at the peak; results of the backward pass count as BACKWARD."""
    live = live_bytes(trace)
    peak = live.index(max(live))
    gone = {i for call in trace.calls[:peak] for i in call.frees}
    first = next((n for n, call in enumerate(trace.calls) if call.takes), len(trace.calls))
    paths, found = seen.paths(), dict[str, int]()
    for n, call in enumerate(trace.calls[:peak + 1]):
        for i in call.outputs:
            if i not in gone:
                place = watch.places[n]
                path = BACKWARD if place.backward else paths.get(place.module, BACKWARD if n >= first else OUTSIDE)
                found[path] = found.get(path, 0) + trace.tensors[i].nbytes
    return found
