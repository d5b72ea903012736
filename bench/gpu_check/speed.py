"""Unmanaged training beside PyTorch eager: the same network, batch and precision, one process, in turns.

Both make a batch of noise on the device in each step, keep images channels-last, choose among all algorithms (PyTorch
by cudnn.benchmark), and run in float32 with TF32, or with activations in bfloat16 and parameters in float32. Both have
run until they are warm. Times are on the clock, from an idle device to an idle device over a few steps; what counts is
the median of the rounds' ratios.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

from bench.gpu_check import samples
from bench.gpu_check.setting import Record, Setting, Training, runtime_on
from bench.gpu_check.steps import Network, program

WARM_STEPS = 3


def measure(setting: Setting, record: Record) -> None:
    """Record seconds a step and ratios; also the seconds of minidl's operations, for the simulator's profile."""
    for precision in setting.sizes.precisions:
        for training in setting.sizes.speed:
            name = f"{training.name} in {precision}"
            known = record.known(f"samples of {name}") and (
                "ratio" in record.found.get(name, {}) or find_spec("torch") is None)
            if not known and setting.in_time(record, name):
                with record.one(name):
                    _compete(setting, record, training, precision)


def _compete(setting: Setting, record: Record, training: Training, precision: str) -> None:
    budget = setting.bytes_for(program(training), precision=precision)
    with setting.open(precision) as device:
        sampler = samples.Sampler(device)
        with runtime_on(device, precision, memory_budget=budget, deterministic=False) as runtime:
            network = Network(runtime, training)

            def ours() -> None:
                with runtime.iteration():
                    network.step()
            contenders = {"minidl": Contender(ours, device.settle, device.now)}
            if find_spec("torch") is None:
                record.leave_out(f"{training.name} in {precision}: PyTorch is not installed, so minidl ran alone")
            else:
                contenders["torch"] = _torch(setting, training, precision)
            for contender in contenders.values():
                for _ in range(WARM_STEPS):
                    contender.step()
                contender.settle()
            sampler.seconds.clear()
            seconds = take_turns(contenders, setting.sizes.rounds, setting.sizes.steps)
            peak = runtime.stats().peak_bytes
        found: dict[str, Any] = {"batch": training.batch, "seconds": seconds, "peak bytes": peak}
        mine = median(seconds["minidl"])
        line = f"{training.name} in {precision}: {1e3 * mine:.1f} ms, {training.batch / mine:.0f} a second"
        if "torch" in seconds:
            found["ratio"] = median(t / m for m, t in zip(seconds["minidl"], seconds["torch"], strict=True))
            line += f"; PyTorch {1e3 * median(seconds['torch']):.1f} ms: minidl is {found['ratio']:.2f} times as fast"
        record.put(f"{training.name} in {precision}", found, line)
        taken = sampler.samples()
        record.put(f"samples of {training.name} in {precision}", samples.to_data(taken),
                   f"{training.name} in {precision}: {len(taken)} different calls were timed")


@dataclass(frozen=True)
class Contender:
    """How to issue a step, how to wait until all has ended, and the clock by which it is timed."""

    step: Callable[[], Any]
    settle: Callable[[], Any]
    clock: Callable[[], float] = perf_counter


def take_turns(contenders: dict[str, Contender], rounds: int, steps: int) -> dict[str, list[float]]:
    """Run the contenders in turns; return the seconds a step of each, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        for name in names[::-1] if number % 2 else names:
            contender = contenders[name]
            contender.settle()
            start = contender.clock()
            for _ in range(steps):
                contender.step()
            contender.settle()
            seconds[name].append((contender.clock() - start) / steps)
    return seconds


def _torch(setting: Setting, training: Training, precision: str) -> Contender:
    import torch

    from bench.support.torch_networks import noise_step

    on_gpu = setting.device.startswith("cuda") and torch.cuda.is_available()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    step = noise_step(training.model, training.batch, side=training.side, length=training.length,
                      where="cuda" if on_gpu else "cpu", bf16=precision == "bf16", **dict(training.options))
    return Contender(step, torch.cuda.synchronize if on_gpu else lambda: None)
