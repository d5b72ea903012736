"""Loss and gradients of every network against PyTorch's (``mirror``), from the same weights and the same data.

Both are compared with PyTorch in float64: the error is the norm of the difference over the norm of the float64 value,
for the loss, and for all gradients together. Our error may be four times PyTorch's own error in float32 (with TF32 if
minidl uses it), plus the error of rounding alone, ``FLOORS``.
"""

from importlib.util import find_spec
from math import sqrt
from typing import Any

import numpy as np

from bench.gpu_check.setting import Record, Setting, Training, runtime_on
from bench.gpu_check.steps import Network
from minidl import nn

TIMES = 4.0
# A few roundings of a loss, and of gradients that cancel; in bf16 activations are rounded to 8 bits, layer by layer,
# and PyTorch's float32 says nothing of that.
FLOORS = {"fp32": 2e-5, "tf32": 3e-3, "bf16": 6e-2}


def measure(setting: Setting, record: Record) -> None:
    """Record for each network and precision minidl's errors beside PyTorch's."""
    if find_spec("torch") is None:
        record.leave_out("PyTorch is not installed: no network was compared with it")
        return
    for precision in ("fp32", *setting.sizes.precisions):
        for training in setting.sizes.mirrored:
            name = f"{training.model} in {precision}"
            if not record.known(name) and setting.in_time(record, name):
                with record.one(name):
                    compare(setting, record, training, precision)


def compare(setting: Setting, record: Record, training: Training, precision: str) -> None:
    """Compare one network: loss and gradients on the device, in PyTorch with its dtype, and in PyTorch with float64."""
    import torch

    from bench.gpu_check.mirror import Tape

    where = "cuda" if setting.device.startswith("cuda") and torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    budget = setting.bytes_for(lambda runtime: Network(runtime, training).step, precision=precision)
    tape = Tape()
    with setting.open(precision) as device, runtime_on(device, precision, memory_budget=2 * budget) as runtime:
        network = Network(runtime, training)
        if precision == "bf16":  # attention may be one operation then, whose mask only the library knows
            for module in network.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        with tape.noting():
            loss = network.loss()
        ours: dict[str, np.ndarray] = {"loss": loss.numpy().astype(np.float64)}
        loss.backward()
        wanted = dict(network.model.named_parameters())
        ours |= {name: p.grad.numpy().astype(np.float64) for name, p in wanted.items() if p.grad is not None}
        exact = tape.play(loss, wanted, torch.float64, where)
        theirs = tape.play(loss, wanted, torch.float32, where)
    found: dict[str, Any] = {"ours": errors(ours, exact), "theirs": errors(theirs, exact), "loss": float(ours["loss"])}
    record.put(f"{training.model} in {precision}", found,
               f"{training.model} in {precision}: loss off by {found['ours']['loss']:.1e} (PyTorch "
               f"{found['theirs']['loss']:.1e}), gradients by {found['ours']['gradients']:.1e} "
               f"({found['theirs']['gradients']:.1e}); worst {found['ours']['worst']}")
    for what in ("loss", "gradients"):
        allowed = TIMES * found['theirs'][what] + FLOORS[precision]
        if not found["ours"][what] <= allowed:
            record.fail(f"{training.model} in {precision}: {what} off by {found['ours'][what]:.1e}, "
                        f"allowed {allowed:.1e}")


def errors(values: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the relative errors of the loss and of all gradients together, and the parameter with the worst gradient.

    The worst gradient is the one whose error is largest as a share of its own norm.
    """
    if values.keys() != exact.keys():
        raise AssertionError(f"gradients of one side only: {sorted(values.keys() ^ exact.keys())[:5]}")
    off = {name: float(np.linalg.norm(values[name] - value)) for name, value in exact.items()}
    size = {name: float(np.linalg.norm(value)) for name, value in exact.items()}
    gradients = [name for name in exact if name != "loss"]
    total = sqrt(sum(off[name]**2 for name in gradients)) / sqrt(sum(size[name]**2 for name in gradients))
    worst = max(gradients, key=lambda name: off[name] / size[name] if size[name] else 0.0)
    return {"loss": off["loss"] / size["loss"], "gradients": total, "worst": worst}
