"""Measures if ranks on CPUs gain from exchanges that run beside kernels, in a thread of their own.

    mpiexec -n 2 python -m bench.rank_overlap [--rounds 6] [--steps 6] [--idle]

Trainings of two networks in turns: exchanges in their place between the kernels, as the CPU device runs them; and as
a prototype on the worker thread of copies out, which idles here. A kernel that touches the bytes of an exchange waits
for it. --idle: kernels sleep for their modelled seconds instead of computing, so an exchange has a core to itself, and
results mean nothing. Set NUMBA_NUM_THREADS=1 for as many kernel threads as cores: two ranks, two cores.
"""

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from minidl.cli.app.train import main as train
from minidl.device.beside import BESIDE, EXCHANGES
from minidl.device.clock import COMPUTE, COPY_OUT, Timed
from minidl.device.contract import Operand, bytes_of, place
from minidl.device.cpu import exchange
from minidl.device.cpu.device import CpuDevice
from minidl.device.cpu.numerics import Numerics
from minidl.device.in_use import InUse
from minidl.meta import Algorithm

CASES = (("--model", "bert-tiny", "--batch", "16"), ("--model", "resnet20", "--data", "digits", "--batch", "128"))
NAP_S = 2e-4  # a shorter sleep takes longer than asked for

_launch, _read, _run = CpuDevice.launch, CpuDevice.read, Numerics.run


def _in_use(device: CpuDevice) -> InUse:
    found: InUse = device.__dict__.setdefault("in_use", InUse())
    return found


def _hold(device: CpuDevice, operands: Sequence[Operand]) -> None:
    in_use = _in_use(device)
    if in_use.latest > in_use.waited[COMPUTE]:
        for offset, nbytes in map(bytes_of, operands):
            if position := in_use.needed(COMPUTE, offset, offset + nbytes):
                device.wait(COMPUTE, COPY_OUT, position)


def _add(total: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
    np.add(one, other, out=total)  # a kernel of Numba's cannot run beside another one's threads


def _with_add(run: Callable[..., None], *arrays: np.ndarray, add: Any, **words: Any) -> None:
    run(*arrays, add=_add, **words)


def launch(device: CpuDevice, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand],
           inputs: Sequence[Operand], attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
    """Launch a call: an exchange on the worker of copies out, anything else as the device does."""
    operands, in_use, numerics = (*outputs, *inputs), _in_use(device), device.numerics
    if op_name not in EXCHANGES:
        _hold(device, operands)
        return _launch(device, op_name, algorithm, outputs, inputs, attrs, workspace, timed)
    places = [place(operand) for operand in operands]

    def effect() -> None:
        exchange.EXCHANGES[op_name](*[numerics.array(at) for at in places], add=_add, **attrs)
    device.wait(COPY_OUT, COMPUTE, device.positions[COMPUTE])
    in_use.latest = device.clock.issue(COPY_OUT, 0.0, effect)
    for offset, nbytes in map(bytes_of, operands):
        in_use.use(offset, offset + nbytes)
    if op_name not in BESIDE:
        _hold(device, operands)
    return device.clock.issue(COMPUTE, 0.0, lambda: None, timed=timed)


def read(device: CpuDevice, operand: Operand) -> np.ndarray:
    """Read a value after the exchanges that use it."""
    _hold(device, (operand,))
    return _read(device, operand)


class Sleeper:
    """Kernels that sleep for as long as the cost model says that they run."""

    def __init__(self) -> None:
        self._owed = 0.0

    def run(self, numerics: Numerics, op_name: str, algorithm: Algorithm, *others: Any) -> None:
        """Sleep in place of a kernel; exchanges and uploads run."""
        if op_name in EXCHANGES or op_name.startswith("upload"):
            return _run(numerics, op_name, algorithm, *others)
        self._owed += algorithm.seconds
        if self._owed > NAP_S:
            start = time.perf_counter()
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - start
        return None


def block(flags: Sequence[str], steps: int, folder: Path, *, beside: bool, idle: bool) -> tuple[float, float]:
    """Train; return the seconds of a step, by rank 0's clock, and this rank's processor time."""
    began, told = time.process_time(), folder / "told.json"
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(io.StringIO()))
        for name, right in exchange.EXCHANGES.items():  # both ways add alike
            stack.enter_context(patch.dict(exchange.EXCHANGES, {name: partial(_with_add, right)}))
        if beside:
            stack.enter_context(patch.object(CpuDevice, "launch", launch))
            stack.enter_context(patch.object(CpuDevice, "read", read))
        if idle:
            sleeper = Sleeper()
            stack.enter_context(patch.object(Numerics, "run", lambda numerics, *words: sleeper.run(numerics, *words)))
        train(["--ranks", "mpi", "--policy", "none", "--device", "cpu", "--steps", str(steps), "--json", str(told),
               *flags])
    seconds = json.loads(told.read_text())["step_seconds"] if told.exists() else 0.0
    return seconds, time.process_time() - began


def main(argv: Sequence[str] | None = None) -> None:
    """Train in turns, and print the medians on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--idle", action="store_true")
    words = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        for flags in CASES:
            run = partial(block, flags, words.steps, Path(folder), idle=words.idle)
            pairs = []
            for number in range(words.rounds + 1):
                order = (False, True) if number % 2 else (True, False)
                found = {beside: run(beside=beside) for beside in order}
                if number:  # the first compiles
                    pairs.append((*found[False], *found[True]))
            if pairs[0][0]:
                place_s, place_cpu, beside_s, beside_cpu = (median(column) for column in zip(*pairs, strict=True))
                ratios = sorted(b / a for a, _, b, _ in pairs)
                print(f"{flags[1]}: in place {1e3 * place_s:.0f} ms a step, beside {1e3 * beside_s:.0f}; ratios "
                      f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {median(ratios):.3f}; "
                      f"processor time {beside_cpu / place_cpu:.2f}", flush=True)


if __name__ == "__main__":
    main()
